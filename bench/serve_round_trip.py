"""The round trip verifier <-> drafter inside Ray Serve replicas against the same outside Ray, in one run.

    python bench/serve_round_trip.py [--prompts FILE.jsonl] [--repeats 3] [--max-tokens 96]

Starts `outrider serve` and, on a Ray of this machine, `outrider deploy` with the same configuration: the
demo's target and prompt lookup, which drafts in no time, so that a round's waiting is the way there and back.
Each request is sent to one and then to the other; they take turns in being first. Batch 1, telemetry off.

Reported for each is the median over requests of `link`: what the verifier waited for a proposal, less what
the drafter says to have spent on it (see round_overhead.py). It holds gRPC both ways, loops and threads.

Each prompt is asked twice: answered whole, which is what the ratio is of, and streamed. A streamed token goes
through Serve's proxy, another process, just when the next proposal is waited for: on few cores that takes CPU
from the round trip, although no message of it passes there.

What differs besides: the replicas' services run on the event loop of Serve's user code, in a thread beside
Serve's own loop, and Ray's processes (controller, raylet, dashboard) are there, mostly idle. Both stacks are
up all the time, one of them idle. Both must give the same tokens, or the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
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

from outrider.benchmark.client import RequestOptions, request_body
from outrider.benchmark.provenance import provenance
from outrider.benchmark.stack import overrides_for, running, running_stack
from outrider.benchmark.workload import Prompt, read_prompts
from outrider.config import OutriderConfig, load_config
from outrider.rayserve.serve_file import BUILDER
from round_overhead import Clock, means_ms, split

DRAFTER = "prompt_lookup"
AIM = 1.2
WAYS = ("whole", "streamed")


@dataclass
class Measured:
    """What was measured of one place and one way to ask."""

    links_ms: list[float] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)
    forwards_ms: list[float] = field(default_factory=list)
    rounds: int = 0

    def add(self, clock: Clock) -> None:
        """One request."""
        means = means_ms(clock)
        self.links_ms.append(split(means)["link"])
        self.waits_ms.append(means["draft_wait"])
        self.forwards_ms.append(means["forward"])
        self.rounds += int(clock.parts["forward"][1])


@dataclass
class Place:
    """One of the two stacks."""

    name: str
    http: str
    metrics: str  # the verifier's page
    measured: dict[str, Measured] = field(default_factory=lambda: {way: Measured() for way in WAYS})

    def ask(self, client: httpx.Client, body: Mapping[str, Any], way: str) -> tuple[int, ...]:
        """Send one request and keep what it took; returns its tokens."""
        before = Clock.read(self.metrics)
        tokens = (streamed if way == "streamed" else whole)(client, f"{self.http}/v1/chat/completions", body)
        self.measured[way].add(Clock.read(self.metrics).since(before))
        return tokens


def whole(client: httpx.Client, url: str, body: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens of an answer that comes at once."""
    plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    answer = client.post(url, json=plain).raise_for_status().json()
    return tuple(answer["choices"][0]["token_ids"])


def streamed(client: httpx.Client, url: str, body: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens of an answer that comes as events."""
    tokens: list[int] = []
    with client.stream("POST", url, json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                tokens += (choices[0].get("token_ids") or []) if choices else []
    return tuple(tokens)


def measure(places: Sequence[Place], prompts: Sequence[Prompt], max_tokens: int) -> None:
    """Send every prompt to both, in both ways; one to each before that."""
    with httpx.Client(timeout=600, trust_env=False) as client:
        model = client.get(f"{places[0].http}/v1/models").raise_for_status().json()["data"][0]["id"]
        bodies = [request_body(model, one, DRAFTER, RequestOptions(max_tokens)) for one in prompts]
        for place in places:
            whole(client, f"{place.http}/v1/chat/completions", bodies[0])
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("requests", total=len(bodies))
            for number, body in enumerate(bodies):
                turns = places if number % 2 == 0 else places[::-1]
                answers = {one.ask(client, body, way) for way in WAYS for one in turns}
                if len(answers) != 1:
                    raise SystemExit(f"{prompts[number].prompt_id}: the answers differ")
                progress.advance(task)


def row(place: Place, way: str) -> dict[str, Any]:
    """What is written of one place."""
    measured = place.measured[way]
    low, middle, high = quantiles(measured.links_ms, n=4)
    return {
        "place": place.name,
        "answers": way,
        "requests": len(measured.links_ms),
        "rounds": measured.rounds,
        "link_ms": round(middle, 4),
        "link_quartiles_ms": [round(low, 4), round(high, 4)],
        "draft_wait_ms": round(median(measured.waits_ms), 4),
        "target_forward_ms": round(median(measured.forwards_ms), 3),
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
    parser.add_argument("--repeats", type=int, default=3, help="how often each prompt is asked")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--json", type=Path, default=here / "out" / "serve_round_trip.json")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], help="path=value, as for serve"
    )
    return parser.parse_args()


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start both, measure, stop both."""
    prompts = read_prompts(options.prompts, None) * options.repeats
    names = load_config(None, options.overrides).drafters
    changes = [f"drafters.{name}=null" for name in names if name != DRAFTER]
    # Ray lets torch have one thread for a replica that takes less than two CPUs, unless `threads` says more.
    changes += [f"verifier.threads={os.cpu_count()}", f"drafters.{DRAFTER}.threads=1"]
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
            measure(places, prompts, options.max_tokens)
    return [row(place, way) for way in WAYS for place in places]


def show(rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, float]) -> None:
    """Print the rows."""
    for one in rows:
        low, high = one["link_quartiles_ms"]
        print(
            f"{one['answers']:>8} {one['place']:>9}: link {one['link_ms']:.3f} ms ({low:.2f} to {high:.2f}), "
            f"forward {one['target_forward_ms']:.1f} ms, {one['rounds']} rounds"
        )
    print(", ".join(f"ratio {way} {ratio:.2f}" for way, ratio in ratios.items()), f"(aim: {AIM})")


def main() -> int:
    """Measure, print, write."""
    options = arguments()
    rows = run(options)
    links = {(one["answers"], one["place"]): one["link_ms"] for one in rows}
    ratios = {way: round(links[way, "ray serve"] / links[way, "processes"], 3) for way in WAYS}
    written = {"rows": rows, "ratios": ratios, "provenance": provenance()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    show(rows, ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
