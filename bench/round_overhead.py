"""What a round costs outside the forwards of the two models, split by part. Batch 1, telemetry off.

    python bench/round_overhead.py [--prompts FILE.jsonl] [--requests 24] [--max-tokens 128]

A round's overhead is the time from the end of the target's forward to the start of the next one, less
the drafter's forwards in between. The verifier measures it for each round
(`outrider_round_overhead_seconds`), the drafter measures its forwards where they happen; reported is
the median over all rounds, to the width of a bucket, 0.25 ms, interpolated within.

The parts come from `outrider_round_part_seconds`, read before and after each request: the difference,
divided by the steps, is that request's mean, and the median over requests is reported.

- link       waiting for the proposal, less what the drafter says to have spent: gRPC both ways, event
             loops and threads of both processes
- drafter    what the drafter says to have spent, less its model's forwards: scheduling and sampling
- sampling   the target's picks and the walk
- other      planning, reserving room, handing results, commits and commands over

Keeping KV happens while the proposal is waited for, so it is a part of the link.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from outrider.benchmark.client import Answer, Client, RequestOptions
from outrider.benchmark.provenance import provenance
from outrider.benchmark.stack import overrides_for, running_stack
from outrider.benchmark.workload import Prompt, read_prompts
from outrider.config import load_config
from outrider.config.schema import OutriderConfig
from outrider.telemetry import names

OVERHEAD = ("link", "drafter", "editing", "sampling", "other")
DRAFTERS = ("eagle", "prompt_lookup")
Parts = dict[str, tuple[float, float]]  # part -> (seconds in all, how often)
Buckets = dict[float, float]  # upper bound in seconds -> rounds up to it


@dataclass(frozen=True, slots=True)
class Clock:
    """What the verifier has measured so far."""

    parts: Parts
    overhead: Buckets

    @classmethod
    def read(cls, address: str) -> Clock:
        """From the verifier's metrics page."""
        text = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=10).raise_for_status().text
        families = {family.name: family.samples for family in text_string_to_metric_families(text)}
        tables: dict[str, dict[str, float]] = {"_sum": {}, "_count": {}}
        for sample in families[names.ROUND_PART_TIME.name]:
            table = tables.get(sample.name.removeprefix(names.ROUND_PART_TIME.name))
            if table is not None:
                table[sample.labels[names.LABEL_PART]] = sample.value
        parts = {part: (tables["_sum"][part], tables["_count"][part]) for part in tables["_sum"]}
        overhead = {
            float(sample.labels["le"]): sample.value
            for sample in families[names.ROUND_OVERHEAD.name]
            if sample.name.endswith("_bucket")
        }
        return cls(parts, overhead)

    def since(self, before: Clock) -> Clock:
        """What was measured after `before`."""
        parts = {
            part: (seconds - before.parts[part][0], count - before.parts[part][1])
            for part, (seconds, count) in self.parts.items()
        }
        return Clock(parts, {bound: count - before.overhead[bound] for bound, count in self.overhead.items()})


def means_ms(clock: Clock) -> dict[str, float]:
    """Mean of each part over the steps, in milliseconds; parts that did not occur are 0."""
    return {part: 1000 * seconds / count if count else 0.0 for part, (seconds, count) in clock.parts.items()}


def median_ms(clocks: Sequence[Clock]) -> float:
    """The median overhead of all rounds, in milliseconds; 0 without rounds."""
    below, count_below = 0.0, 0.0
    total = sum(max(clock.overhead.values()) for clock in clocks)
    for bound in sorted(clocks[0].overhead):
        count = sum(clock.overhead[bound] for clock in clocks)
        if count >= total / 2 > count_below:
            if math.isinf(bound):
                break
            return 1000 * (below + (bound - below) * (total / 2 - count_below) / (count - count_below))
        below, count_below = bound, count
    return 1000 * below


def split(means: Mapping[str, float]) -> dict[str, float]:
    """The overhead's parts of one request."""
    return {
        "link": means["draft_wait"] - means["draft"],
        "drafter": means["draft"] - means["draft_forward"],
        "editing": means["editing"],
        "sampling": means["sampling"],
        "other": means["other"],
    }


async def measure(
    url: str, metrics: str, prompts: Sequence[Prompt], options: RequestOptions, drafters: Sequence[str]
) -> dict[str, list[tuple[Clock, Answer]]]:
    """For each drafter, the clock of each request and its answer; drafters take turns."""
    found: dict[str, list[tuple[Clock, Answer]]] = {name: [] for name in drafters}
    async with Client(url) as client:
        model = await client.model()
        for drafter in drafters:
            await client.generate(model, prompts[0], drafter, options)
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("requests", total=len(prompts) * len(drafters))
            for prompt in prompts:
                for drafter in drafters:
                    before = Clock.read(metrics)
                    answer = await client.generate(model, prompt, drafter, options)
                    found[drafter].append((Clock.read(metrics).since(before), answer))
                    progress.advance(task)
    return found


def report(found: Mapping[str, Sequence[tuple[Clock, Answer]]]) -> list[dict[str, Any]]:
    """One row for each drafter."""
    rows = []
    for drafter, requests in found.items():
        means = [means_ms(clock) for clock, _ in requests]
        parts = [split(own) for own in means]
        gaps = [
            1000 * (now - before)
            for _, answer in requests
            for (before, _), (now, _) in zip(answer.arrivals, answer.arrivals[1:], strict=False)
        ]
        rows.append(
            {
                "drafter": drafter,
                "requests": len(requests),
                "rounds": sum(answer.rounds for _, answer in requests),
                "overhead_ms": round(median_ms([clock for clock, _ in requests]), 3),
                "parts_ms": {part: round(median(own[part] for own in parts), 3) for part in OVERHEAD},
                "draft_forwards_ms": round(median(own["draft_forward"] for own in means), 3),
                "target_forward_ms": round(median(own["forward"] for own in means), 3),
                "round_ms_at_client": round(median(gaps), 3),
            }
        )
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows."""
    table = Table(
        title="A round outside the models' forwards, ms: median over rounds, its parts over requests"
    )
    for name in ("drafter", "rounds", "overhead", *OVERHEAD, "draft fwd", "target fwd", "round at client"):
        table.add_column(name, justify="left" if name == "drafter" else "right")
    for row in rows:
        parts = [f"{row['parts_ms'][part]:.2f}" for part in OVERHEAD]
        times = [row[name] for name in ("draft_forwards_ms", "target_forward_ms", "round_ms_at_client")]
        overhead = f"[bold]{row['overhead_ms']:.2f}[/]"
        cells = [row["drafter"], str(row["rounds"]), overhead, *parts, *(f"{time:.2f}" for time in times)]
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=here / "prompts_smoke.jsonl")
    parser.add_argument("--requests", type=int, default=24, help="prompts, at most as many as the file holds")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, default=here / "out" / "round_overhead.json")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], help="path=value, as for serve"
    )
    return parser.parse_args()


def draft_length(config: OutriderConfig, name: str) -> int:
    """Draft tokens a round of sessions that use this drafter."""
    own = config.drafters[name].draft_length
    return config.verifier.draft_length if own is None else own


def main() -> int:
    """Measure, print, write."""
    options = arguments()
    prompts = read_prompts(options.prompts, options.requests)
    config = load_config(None, options.overrides)
    drafters = [name for name in DRAFTERS if name in config.drafters]
    overrides = overrides_for(None, [*options.overrides, "verifier.metrics_port=0"])
    with running_stack(None, overrides) as ready:
        request = RequestOptions(options.max_tokens)
        metrics = ready["services"]["verifier"]["metrics"]
        found = asyncio.run(measure(ready["http"], metrics, prompts, request, drafters))
    rows = report(found)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"rows": rows, "provenance": provenance()}, indent=1) + "\n")
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
