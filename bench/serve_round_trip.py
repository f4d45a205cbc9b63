"""The round trip verifier <-> drafter inside Ray Serve replicas against the same outside Ray, in one run.

    python bench/serve_round_trip.py [--prompts FILE.jsonl] [--requests 24] [--max-tokens 128]

Starts `outrider serve` and, on a Ray of this machine, `outrider deploy` with the same configuration: the
demo's target and prompt lookup, which drafts in no time, so that a round's waiting is the way there and back.
Each request is sent to one and then to the other; they take turns in being first. Batch 1, telemetry off.

Reported for each is the median over requests of `link`: what the verifier waited for a proposal, less what
the drafter says to have spent on it (see round_overhead.py). It holds gRPC both ways, loops and threads.

What differs: the replicas' services run on the event loop of Serve's user code, in a thread beside Serve's
own loop, and Ray's processes (controller, raylet, dashboard) are there, mostly idle. Both stacks are up all
the time, one of them idle. Both must give the same tokens, or the run fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import yaml
from rich.console import Console
from rich.progress import Progress

from outrider.benchmark.client import Client, RequestOptions
from outrider.benchmark.provenance import provenance
from outrider.benchmark.stack import overrides_for, running, running_stack
from outrider.benchmark.workload import Prompt, read_prompts
from outrider.config import OutriderConfig, load_config
from outrider.rayserve.serve_file import BUILDER
from round_overhead import Clock, means_ms, split

DRAFTER = "prompt_lookup"
AIM = 1.2


@dataclass
class Place:
    """One of the two stacks, and what was measured there."""

    name: str
    http: str
    metrics: str  # the verifier's page
    links_ms: list[float] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)
    forwards_ms: list[float] = field(default_factory=list)
    rounds: int = 0

    async def ask(
        self, client: Client, model: str, prompt: Prompt, options: RequestOptions
    ) -> tuple[int, ...]:
        """Send one request and keep what it took; returns its tokens."""
        before = Clock.read(self.metrics)
        answer = await client.generate(model, prompt, DRAFTER, options)
        means = means_ms(Clock.read(self.metrics).since(before))
        self.links_ms.append(split(means)["link"])
        self.waits_ms.append(means["draft_wait"])
        self.forwards_ms.append(means["forward"])
        self.rounds += answer.rounds
        return tuple(answer.token_ids)


async def measure(places: Sequence[Place], prompts: Sequence[Prompt], options: RequestOptions) -> None:
    """Send every prompt to both, the first one to each once before that."""
    async with Client(places[0].http) as first, Client(places[1].http) as second:
        clients = {places[0].name: first, places[1].name: second}
        model = await first.model()
        for place in places:
            await clients[place.name].generate(model, prompts[0], DRAFTER, options)
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("requests", total=len(prompts))
            for number, prompt in enumerate(prompts):
                turns = places if number % 2 == 0 else places[::-1]
                answers = {await one.ask(clients[one.name], model, prompt, options) for one in turns}
                if len(answers) != 1:
                    raise SystemExit(f"{prompt.prompt_id}: the answers differ")
                progress.advance(task)


def row(place: Place) -> dict[str, Any]:
    """What is written of one place."""
    low, middle, high = quantiles(place.links_ms, n=4)
    return {
        "place": place.name,
        "requests": len(place.links_ms),
        "rounds": place.rounds,
        "link_ms": round(middle, 4),
        "link_quartiles_ms": [round(low, 4), round(high, 4)],
        "draft_wait_ms": round(median(place.waits_ms), 4),
        "target_forward_ms": round(median(place.forwards_ms), 3),
    }


def serve_file(config: OutriderConfig, ports: Sequence[int]) -> dict[str, Any]:
    """A Serve configuration of `config`."""
    pool = {"cpus": 0.2}
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": ports[0]},
        "grpc_options": {"port": ports[1]},
        "applications": [
            {
                "name": "outrider",
                "route_prefix": "/",
                "import_path": BUILDER,
                "args": {
                    "loopback": True,
                    "config": config.model_dump(mode="json", include={"model", "verifier", "drafters"}),
                    "pools": {"gateway": pool, "verifier": pool, "drafters": {DRAFTER: pool}},
                },
            }
        ],
    }


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def verifier_page(http: str) -> str:
    """Address of the verifier's metrics."""
    groups = httpx.get(f"{http}/metrics/targets", trust_env=False, timeout=30).raise_for_status().json()
    return str(next(one["targets"][0] for one in groups if one["labels"]["role"] == "verifier"))


def arguments() -> argparse.Namespace:
    """The command line."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=here / "prompts_smoke.jsonl")
    parser.add_argument("--requests", type=int, default=24, help="prompts, at most as many as the file holds")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, default=here / "out" / "serve_round_trip.json")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], help="path=value, as for serve"
    )
    return parser.parse_args()


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start both, measure, stop both."""
    prompts = read_prompts(options.prompts, options.requests)
    names = load_config(None, options.overrides).drafters
    changes = [f"drafters.{name}=null" for name in names if name != DRAFTER]
    changes += [*options.overrides, "verifier.metrics_port=0"]
    overrides = [*overrides_for(None, changes)]
    config = load_config(None, overrides)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve.yaml"
        path.write_text(yaml.safe_dump(serve_file(config, free_ports(2))), "utf-8")
        command = [sys.executable, "-m", "outrider.cli.main", "deploy", str(path), "--local", "--json-ready"]
        with running_stack(None, overrides) as local, running(command) as deployed:
            places = [
                Place("processes", local["http"], local["services"]["verifier"]["metrics"]),
                Place("ray serve", deployed["http"], verifier_page(deployed["http"])),
            ]
            asyncio.run(measure(places, prompts, RequestOptions(options.max_tokens)))
    return [row(place) for place in places]


def show(rows: Sequence[Mapping[str, Any]], ratio: float) -> None:
    """Print the rows."""
    for one in rows:
        low, high = one["link_quartiles_ms"]
        print(
            f"{one['place']:>10}: link {one['link_ms']:.3f} ms (quartiles {low:.3f} to {high:.3f}), "
            f"target's forward {one['target_forward_ms']:.2f} ms, {one['rounds']} rounds"
        )
    print(f"     ratio: {ratio:.2f} (the aim is at most {AIM})")


def main() -> int:
    """Measure, print, write."""
    options = arguments()
    rows = run(options)
    ratio = rows[1]["link_ms"] / rows[0]["link_ms"]
    written = {"rows": rows, "ratio": round(ratio, 3), "provenance": provenance()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    show(rows, ratio)
    return 0


if __name__ == "__main__":
    sys.exit(main())
