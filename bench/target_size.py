"""How the gain of speculation grows with the target's size. Cost only: all weights are random.

    python bench/target_size.py --sizes tiny --tokens 32 --out bench/out/target_size.json      # small
    python bench/target_size.py --sizes 135m,360m,1b --acceptance 0.5,0.7,0.9 --out ...

For each size a real verifier and real drafters of fitting shapes, as processes on the loopback, batch 1,
greedy. The target answers with speculation off; then each drafter works as it would, but what it proposes is
replaced by that answer, each token right with a given probability (bench/oracle_drafter.py). So the time of
every part is real, and acceptance is the same for all. Drafters and `off` take turns on each prompt; the
median over prompts is told. `missed` counts proposals that came too late: on a quiet machine there are none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from grpc import aio

from oracle_drafter import key_of
from outrider.benchmark.provenance import provenance
from outrider.core.params import SamplingParams, SpeculationParams
from outrider.wire import convert
from outrider.wire.channels import open_channel
from outrider.wire.messages import SessionFinished, SessionRequest, SessionTokens, StopRequest
from outrider.wire.services import VerifierClient, verifier_client
from random_models import TARGETS, drafters_for, make

START_S = 600.0
OFF = "off"


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer."""

    token_ids: list[int]
    seconds: float  # from the first token to the last
    rounds: int
    accepted: int
    drafted: int
    missed: int


def config_of(folder: Path, size: str, draft_length: int) -> dict[str, Any]:
    """A verifier and a drafter of each shape, on free ports."""
    target = make(folder / size, TARGETS[size])
    engine = {"dtype": "bfloat16", "pool_tokens": 4096, "prefix_cache": False}
    drafters: dict[str, dict[str, Any]] = {"lookup": {"method": "prompt_lookup"}}
    for name, shape in drafters_for(TARGETS[size]).items():
        model = make(folder / f"{size}-{name}", shape, seed=1)
        drafters[name] = {"method": "draft_model", "model": str(model), **engine}
    for own in drafters.values():
        own["port"] = free_port()
    verifier = {**engine, "port": free_port(), "draft_length": draft_length, "patience_ms": 5000.0}
    return {"model": str(target), "verifier": verifier, "drafters": drafters}


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def services(config: dict[str, Any], path: Path, answers: Path) -> Iterator[str]:
    """The processes; yields the verifier's address. All are stopped at the end."""
    path.write_text(yaml.safe_dump(config))
    here = Path(__file__).parent
    commands = [[sys.executable, "-m", "outrider.cli.main", "verifier", "--config", str(path)]]
    for name in config["drafters"]:
        commands.append([sys.executable, str(here / "oracle_drafter.py"), str(path), name, str(answers)])
    with path.with_suffix(".log").open("w") as log:
        children = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
        try:
            yield f"127.0.0.1:{config['verifier']['port']}"
        finally:
            for child in children:
                child.terminate()
            for child in children:
                child.wait(60)


async def ready(client: VerifierClient, drafters: list[str], prompt: list[int]) -> None:
    """Wait until the verifier serves and each drafter has drafted."""
    deadline = time.monotonic() + START_S
    for name in (OFF, *drafters):
        while True:
            try:
                answer = await ask(client, prompt, name, 0.0, 4)
                if name == OFF or answer.drafted:
                    break
            except aio.AioRpcError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} was not ready within {START_S:.0f} s")
            await asyncio.sleep(0.5)


async def ask(client: VerifierClient, prompt: list[int], drafter: str, rate: float, tokens: int) -> Timed:
    """One greedy answer; the oracle is told its rate by the seed."""
    on = drafter != OFF
    wanted = SessionRequest(
        uuid.uuid4().hex,
        tuple(prompt),
        SamplingParams(temperature=0.0, seed=round(1000 * rate)),
        stop=StopRequest(max_tokens=tokens, ignore_eos=True),
        speculation=SpeculationParams(enabled=on, drafter=drafter if on else ""),
    )
    token_ids: list[int] = []
    first = last = time.perf_counter()
    async for response in client.Generate(convert.session_request_to_proto(wanted)):
        event = convert.session_event_from_proto(response.event)
        if isinstance(event, SessionTokens):
            last = time.perf_counter()
            first = first if token_ids else last
            token_ids += event.token_ids
        elif isinstance(event, SessionFinished):
            stats = event.speculation
    counts = (stats.rounds, stats.accepted_tokens, stats.draft_tokens, stats.missed)
    return Timed(token_ids, last - first, *counts)


async def measure(address: str, options: argparse.Namespace, drafters: list[str], answers: Path) -> list[Any]:
    """Rows of one size."""
    source = random.Random(0)
    prompts = [
        [source.randrange(10, 40000) for _ in range(options.prompt)] for _ in range(options.prompts + 1)
    ]
    trial = prompts.pop()
    known: dict[str, list[int]] = {key_of(trial): [5] * 4}
    answers.write_text(json.dumps(known))
    cases = [(name, rate) for name in drafters for rate in options.acceptance]
    ratios: dict[tuple[str, float], list[float]] = {case: [] for case in cases}
    per_round: dict[tuple[str, float], list[float]] = {case: [] for case in cases}
    sums = {case: [0, 0, 0] for case in cases}
    rates = []
    async with open_channel(address) as channel:
        client = verifier_client(channel)
        await ready(client, drafters, trial)
        for prompt in prompts:
            off = await ask(client, prompt, OFF, 0.0, options.tokens)
            known[key_of(prompt)] = off.token_ids
            answers.write_text(json.dumps(known))
            rates.append((len(off.token_ids) - 1) / off.seconds)
            for name, rate in cases:
                on = await ask(client, prompt, name, rate, options.tokens)
                if on.token_ids != off.token_ids:
                    raise AssertionError(f"{name} changed the output")
                ratios[name, rate].append(off.seconds / on.seconds)
                counts = (on.drafted, on.accepted, on.missed)
                sums[name, rate] = [old + new for old, new in zip(sums[name, rate], counts, strict=True)]
                per_round[name, rate].append(len(on.token_ids) / on.rounds)
    return [
        {
            "drafter": name,
            "acceptance": rate,
            "off_tokens_per_second": round(median(rates), 3),
            "tokens_per_round": round(median(per_round[name, rate]), 3),
            "times_off": round(median(ratios[name, rate]), 3),
            **dict(zip(("drafted", "accepted", "missed"), sums[name, rate], strict=True)),
        }
        for name, rate in cases
    ]


def main() -> int:
    """Measure each size; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=["135m", "360m", "1b"])
    parser.add_argument(
        "--acceptance", type=lambda text: [float(word) for word in text.split(",")], default=[0.5, 0.7, 0.9]
    )
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=4, help="how many")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each")
    parser.add_argument("--tokens", type=int, default=64, help="generated for each")
    parser.add_argument(
        "--work", type=Path, default=Path("bench/out/random_models"), help="models are kept here"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for size in options.sizes:
        config = config_of(options.work, size, options.draft_length)
        answers = options.work / f"{size}.answers.json"
        answers.write_text("{}")
        with services(config, options.work / f"{size}.yaml", answers) as address:
            for row in asyncio.run(measure(address, options, list(config["drafters"]), answers)):
                rows.append({"size": size, **row})
                print(json.dumps(rows[-1]))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"rows": rows, "provenance": provenance()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
