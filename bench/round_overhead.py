"""What a round costs outside the forwards of the two models, split by part. Batch 1, telemetry off.

    python bench/round_overhead.py [--prompts FILE.jsonl] [--requests 24] [--max-tokens 128]

Runs the demo stack and reads the verifier's own clock of its steps (`outrider_round_part_seconds`)
before and after each request: the difference, divided by the steps, is that request's mean; the
median over requests is reported. Parts that count as overhead:

- link       waiting for the proposal, less what the drafter says to have spent: gRPC both ways, event
             loops and threads of both processes
- drafter    what the drafter says to have spent, less its model's forwards: scheduling and sampling
- sampling   the target's picks and the walk
- commit     keeping KV, releasing it
- other      planning, reserving room, handing results, commits and commands over

The waiting begins when a proposal is asked for, so it also holds handing over and committing: these
count twice, and the sum is an upper bound. The draft model's forwards are not in its metrics; the
same engine is timed for them in a process of its own, while the stack is idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from draft_forward import draft_forward_ms
from outrider.benchmark.client import Answer, Client, RequestOptions
from outrider.benchmark.provenance import provenance
from outrider.benchmark.stack import overrides_for, running_stack
from outrider.benchmark.workload import Prompt, read_prompts
from outrider.config import load_config
from outrider.config.schema import OutriderConfig
from outrider.telemetry import names

OVERHEAD = ("link", "drafter", "sampling", "commit", "other")
DRAFTERS = ("draft_model", "prompt_lookup")
Parts = dict[str, tuple[float, float]]  # part -> (seconds in all, how often)


def read_parts(address: str) -> Parts:
    """The verifier's clock of its steps."""
    text = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=10).raise_for_status().text
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name == names.ROUND_PART_TIME.name:
            for sample in family.samples:
                table = {"_sum": sums, "_count": counts}.get(sample.name.removeprefix(family.name))
                if table is not None:
                    table[sample.labels[names.LABEL_PART]] = sample.value
    return {part: (sums[part], counts[part]) for part in sums}


def means_ms(before: Parts, after: Parts) -> dict[str, float]:
    """Mean of each part over the steps in between, in milliseconds; parts that did not occur are 0."""
    means = {}
    for part in names.ROUND_PARTS:
        seconds, count = (new - old for new, old in zip(after[part], before[part], strict=True))
        means[part] = 1000 * seconds / count if count else 0.0
    return means


def split(means: Mapping[str, float], forward_ms: float) -> dict[str, float]:
    """The overhead's parts of one request. `forward_ms`: the draft model's forwards of one proposal."""
    return {
        "link": means["draft_wait"] - means["draft"],
        "drafter": max(0.0, means["draft"] - forward_ms),
        "sampling": means["sampling"],
        "commit": means["commit"],
        "other": means["other"],
    }


async def measure(
    url: str, metrics: str, prompts: Sequence[Prompt], options: RequestOptions, drafters: Sequence[str]
) -> dict[str, list[tuple[dict[str, float], Answer]]]:
    """For each drafter, the mean parts of each request and its answer; drafters take turns."""
    found: dict[str, list[tuple[dict[str, float], Answer]]] = {name: [] for name in drafters}
    async with Client(url) as client:
        model = await client.model()
        for drafter in drafters:
            await client.generate(model, prompts[0], drafter, options)
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("requests", total=len(prompts) * len(drafters))
            for prompt in prompts:
                for drafter in drafters:
                    before = read_parts(metrics)
                    answer = await client.generate(model, prompt, drafter, options)
                    found[drafter].append((means_ms(before, read_parts(metrics)), answer))
                    progress.advance(task)
    return found


def report(
    found: dict[str, list[tuple[dict[str, float], Answer]]], forwards_ms: Mapping[str, float]
) -> list[dict[str, Any]]:
    """One row for each drafter: medians over its requests."""
    rows = []
    for drafter, requests in found.items():
        parts = [split(means, forwards_ms.get(drafter, 0.0)) for means, _ in requests]
        gaps = [
            1000 * (now - before)
            for _, answer in requests
            for (before, _), (now, _) in zip(answer.arrivals, answer.arrivals[1:], strict=False)
        ]
        totals = [sum(own.values()) for own in parts]
        rows.append(
            {
                "drafter": drafter,
                "requests": len(requests),
                "rounds": sum(answer.rounds for _, answer in requests),
                "overhead_ms": round(median(totals), 3),
                "parts_ms": {part: round(median(own[part] for own in parts), 3) for part in OVERHEAD},
                "draft_forwards_ms": round(forwards_ms.get(drafter, 0.0), 3),
                "target_forward_ms": round(median(means["forward"] for means, _ in requests), 3),
                "round_ms_at_client": round(median(gaps), 3),
            }
        )
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows."""
    table = Table(title="A round outside the models' forwards: medians over requests, ms")
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
        forwards_ms = {
            name: draft_length(config, name) * draft_forward_ms(config, name)
            for name in drafters
            if config.drafters[name].method == "draft_model"
        }
    rows = report(found, forwards_ms)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"rows": rows, "provenance": provenance()}, indent=1) + "\n")
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
