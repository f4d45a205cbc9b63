"""Keeps streams open while everything around them is broken at random, and checks every token.

    python -m bench.soak --seconds 600                 # tiny random models
    python -m bench.soak --seconds 600 --model demo    # the demo's models, in float32

First an undisturbed run, with speculation off, says what each request has to be answered. Ends with 1 if
any stream lost, repeated or changed a token, ended otherwise, or if something is held at the end; the logs
of all services are kept then. The seed decides the requests and the faults, not what runs when.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.soak import report
from bench.soak.faults import Breaker
from bench.soak.journal import Journal
from bench.soak.sampling import Sampler
from bench.soak.streams import Traffic
from bench.soak.workload import questions, undisturbed
from bench.soak.world import World, remove, running
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from tests.idle import wait_until_idle

from outrider.benchmark.provenance import provenance

LAST_FAULT_S = 10.0
"""Nothing is broken in so many seconds at the end, in a run of a minute or more."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=32, help="open at once")
    parser.add_argument("--seed", type=int, default=0, help="0: a random one, which is told")
    parser.add_argument("--model", choices=("tiny", "demo"), default="tiny")
    parser.add_argument("--tokens", type=int, default=200, help="of the longest answers")
    parser.add_argument("--out", type=Path, default=None, help="default: bench/results/soak_MODEL.json")
    return parser.parse_args()


class _Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


async def soak(
    world: World, journal: Journal, wanted: argparse.Namespace, console: Console
) -> dict[str, Any]:
    """The whole run; its findings."""
    dice = random.Random(wanted.seed)
    stack = world.stack
    pool = questions(dice, count=48, longest=wanted.tokens)
    console.print("undisturbed run ...")
    answers = await undisturbed(stack.grpc, pool)
    journal.note("undisturbed", requests=len(answers))
    sampler = Sampler(world)
    start = time.monotonic()
    until = start + wanted.seconds
    with _progress(console) as progress:
        bar = progress.add_task("streams", total=wanted.seconds, streams=0, faults=0, violations=0)

        def advance() -> None:
            progress.update(
                bar,
                completed=min(wanted.seconds, time.monotonic() - start),
                streams=len(traffic.outcomes),
                faults=len(journal.faults),
                violations=len(journal.violations),
            )

        traffic = Traffic(stack.all("gateway"), pool, answers, journal, random.Random(dice.random()), advance)
        breaker = Breaker(world, traffic, journal, random.Random(dice.random()))
        sampling = asyncio.create_task(sampler.run())
        breaking = asyncio.create_task(breaker.run(until - min(LAST_FAULT_S, wanted.seconds / 6)))
        try:
            await traffic.keep_open(wanted.streams, until)
            await breaking
        finally:
            breaking.cancel()
            sampling.cancel()
            await asyncio.gather(sampling, breaking, return_exceptions=True)
    try:
        await asyncio.to_thread(wait_until_idle, stack, timeout_s=60)
    except AssertionError as error:
        journal.violation(f"at the end: {error}")
    await sampler.look()
    memory = sampler.memory()
    for one in memory:
        if one.grows and wanted.seconds >= 300:
            journal.violation(f"{one.service} grew from {one.at_half:.0f} to {one.at_end:.0f} MiB")
    return report.summary(journal, traffic.outcomes, memory, sampler.counters())


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[streams]} streams, {task.fields[faults]} faults"),
        TextColumn("{task.fields[violations]} violations"),
        console=console,
    )


def main() -> int:
    """Run it; the exit status."""
    wanted = arguments()
    wanted.seed = wanted.seed or random.SystemRandom().randrange(1, 2**31)
    console = Console()
    console.print(f"seed {wanted.seed}")
    folder = Path(tempfile.mkdtemp(prefix="outrider-soak-"))
    journal = Journal.at(folder / "journal.jsonl")
    with contextlib.closing(journal):
        try:
            with running(wanted.model, folder) as world:
                found = asyncio.run(soak(world, journal, wanted, console))
        except AssertionError as error:  # a service did not start, or did not stop
            journal.violation(str(error))
            found = {"violations": 1, "violations_in_words": [str(error)]}
    out = wanted.out or Path("bench/results") / f"soak_{wanted.model}.json"
    settings = {name: getattr(wanted, name) for name in ("seconds", "streams", "seed", "model", "tokens")}
    report.write(out, {**found, "settings": settings, "provenance": provenance()})
    if "streams" in found:
        report.show(console, found)
    if found["violations"]:
        console.print(f"journal and logs of all services: {folder}")
        return 1
    remove(folder)
    console.print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
