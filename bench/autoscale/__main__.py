"""Drives load up and down through the public API of an application on Ray Serve, and watches it scale.

    python -m bench.autoscale                  # tiny random models, about three minutes
    python -m bench.autoscale --model demo     # the demo's models, in float32

First an undisturbed run, with speculation off, says what each request has to be answered. Then few streams,
many, and few again. Ends with 1 unless drafters went from 1 to 3 and back to 1, verifiers from 1 to 2 and
back, and every stream ended with exactly its tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.autoscale import picture, sampling
from bench.autoscale.world import DRAFT_MODEL, DRAFTER, MOST, VERIFIER, arguments, policy
from bench.soak.journal import Journal
from bench.soak.streams import Traffic
from bench.soak.workload import Answer, Question, questions, undisturbed
from rich.console import Console
from tests.processes import wait_until
from tests.serve_cluster import ServeApp, ServeCluster

from outrider.benchmark.provenance import provenance

START_S = 15.0
"""Few streams before the peak, while nothing has to change."""
STAYS_S = 15.0
"""How long the most replicas, and then the fewest, run before load changes or the bench ends."""


@dataclass(frozen=True)
class Gateway:
    """Where streams go in: Serve's ingress."""

    http: str
    reached: str  # gRPC


def command_line() -> argparse.Namespace:
    """Its options."""
    parser = argparse.ArgumentParser(
        prog="autoscale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("tiny", "demo"), default="tiny")
    parser.add_argument("--streams", type=int, default=12, help="open at once at the peak")
    parser.add_argument("--few", type=int, default=2, help="before and after it")
    parser.add_argument("--limit", type=float, default=240, help="seconds that replicas may take to follow")
    parser.add_argument("--tokens", type=int, default=300, help="of the longest answers")
    parser.add_argument("--worth", action="store_true", help="drafters run only while they pay")
    parser.add_argument("--out", type=Path, default=None, help="default: bench/results/autoscale_MODEL.json")
    parser.add_argument(
        "--picture", type=Path, default=None, help="default: docs/pictures/autoscale_MODEL.png"
    )
    return parser.parse_args()


async def drive(
    app: ServeApp, wanted: argparse.Namespace, journal: Journal, console: Console
) -> tuple[list[sampling.Sample], list[Traffic]]:
    """The whole run: what was seen, and the streams that ended."""
    gateway: Any = Gateway(app.cluster.http, app.cluster.grpc)
    # All by the drafter that scales: of several, verifiers would soon ask the better one alone.
    pool = questions(random.Random(1), count=36, longest=wanted.tokens)
    asked = [replace(one, drafter=DRAFT_MODEL) for one in pool if one.determined]
    console.print("undisturbed run ...")
    answers = await undisturbed(gateway.reached, asked)
    await asyncio.to_thread(_settled, app, wanted.limit)  # it was a load, too
    groups = [_traffic(gateway, asked, answers, journal, seed) for seed in (2, 3)]
    sampler = sampling.Sampler(app, lambda: sum(one.open for one in groups))
    watching = asyncio.create_task(sampler.run())
    limit = time.monotonic() + START_S + 2 * wanted.limit
    over, calm = asyncio.Event(), asyncio.Event()
    try:
        console.print(f"{wanted.few} streams ...")
        few = asyncio.create_task(groups[0].keep_open(wanted.few, limit, enough=calm))
        await asyncio.sleep(START_S)
        console.print(f"{wanted.streams} streams ...")
        many = asyncio.create_task(
            groups[1].keep_open(wanted.streams - wanted.few, limit - wanted.limit, enough=over)
        )
        await _reached(sampler, MOST, limit - wanted.limit)
        over.set()
        await many
        console.print(f"{wanted.few} streams ...")
        await _reached(sampler, dict.fromkeys(MOST, 1), limit)
        calm.set()
        await few
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return sampler.samples, groups


def _settled(app: ServeApp, limit_s: float) -> None:
    """Wait until one replica of each runs; loading models may take long where others work, too."""
    one_each = {VERIFIER: 1, DRAFTER: 1}
    wait_until(lambda: one_each.items() <= app.running().items(), "one replica of each", timeout_s=limit_s)


async def _reached(sampler: sampling.Sampler, wanted: dict[str, int], limit: float) -> None:
    """Wait until so many replicas have run for a while."""
    since = time.monotonic()
    while time.monotonic() < min(limit, since + STAYS_S):
        last = sampler.samples[-1] if sampler.samples else None
        if last is None or (last.verifiers, last.drafters) != (wanted[VERIFIER], wanted[DRAFTER]):
            since = time.monotonic()
        await asyncio.sleep(sampling.EVERY_S)


def _traffic(
    gateway: Any, asked: list[Question], answers: dict[Question, Answer], journal: Journal, seed: int
) -> Traffic:
    return Traffic(
        [gateway], asked, answers, journal, random.Random(seed), on_end=lambda: None, may_leave=False
    )


def judge(samples: list[sampling.Sample], journal: Journal, streams: int) -> dict[str, list[int]]:
    """Whether replicas went up and down as they must; what does not hold becomes a violation."""
    seen = {
        VERIFIER: sampling.steps([one.verifiers for one in samples]),
        DRAFTER: sampling.steps([one.drafters for one in samples]),
    }
    for name, numbers in seen.items():
        if (numbers[0], max(numbers), numbers[-1]) != (1, MOST[name], 1):
            journal.violation(f"{name} went {numbers}, not from 1 to {MOST[name]} and back to 1")
    if not streams:
        journal.violation("no stream ended")
    return seen


def run(wanted: argparse.Namespace, folder: Path, journal: Journal, console: Console) -> dict[str, Any]:
    """Cluster, application, load; the findings."""
    import ray

    with ServeCluster() as cluster:
        console.print("starting the application ...")
        app = cluster.deploy(
            arguments(wanted.model, folder),
            autoscaling_policy=policy(wanted.streams, wanted.worth),
            wait=False,
        )
        _settled(app, wanted.limit)
        logs = Path(ray._private.worker._global_node.get_logs_dir_path())  # noqa: SLF001
        samples, groups = asyncio.run(drive(app, wanted, journal, console))
        decided = sampling.decisions(logs)
    ended = [one for group in groups for one in group.outcomes]
    replicas = judge(samples, journal, len(ended))
    return {
        "replicas": replicas,
        "streams": len(ended),
        "tokens": sum(one.tokens for one in ended),
        "resumes": sum(one.resumes for one in ended),
        "violations": journal.violations,
        "decisions": decided,
        "samples": sampling.as_json(samples),
    }


def main() -> int:
    """Run it; the exit status."""
    wanted, console = command_line(), Console()
    folder = Path(tempfile.mkdtemp(prefix="outrider-autoscale-"))
    journal = Journal.at(folder / "journal.jsonl")
    with closing(journal):
        found = run(wanted, folder, journal, console)
    out = wanted.out or Path("bench/results") / f"autoscale_{wanted.model}.json"
    given = {name: value for name, value in vars(wanted).items() if name not in ("out", "picture")}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps({**found, "settings": given, "provenance": provenance()}, indent=1) + "\n",
        encoding="utf-8",
    )
    picture.draw(wanted.picture or Path("docs/pictures") / f"autoscale_{wanted.model}.png", found)
    for line in found["decisions"]:
        console.print(line, highlight=False, soft_wrap=True)
    console.print({key: found[key] for key in ("replicas", "streams", "tokens", "resumes", "violations")})
    if found["violations"]:
        console.print(f"journal: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    console.print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
