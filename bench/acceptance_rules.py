"""How much of a draft model's proposals each rule of acceptance accepts, at temperature 1. Counts, no times.

    python bench/acceptance_rules.py [--prompts FILE.jsonl] [--samples 2] [--max-tokens 128]

The demo's stack as processes; the same prompts and seeds for each rule, several at once. The rules draw
different answers, so their figures differ by chance too: the standard error says how much.

- accepted per draft token       accepted draft tokens / draft tokens
- tokens per round               1 + accepted draft tokens / rounds with a proposal: what such a round brings,
                                 whether or not all proposals came in time on this machine
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.benchmark.provenance import provenance
from outrider.benchmark.stack import overrides_for, running_stack
from outrider.benchmark.workload import Prompt, read_prompts
from outrider.client import Client
from outrider.core.params import Acceptance
from outrider.core.sessions import SpeculationStats

DRAFTER = "eagle"
AT_ONCE = 8


def measure(
    address: str, prompts: Sequence[Prompt], options: argparse.Namespace
) -> dict[str, list[SpeculationStats]]:
    """For each rule what each request's rounds accepted."""
    asked = [(prompt, seed) for prompt in prompts for seed in range(1, options.samples + 1)]
    found = {}
    with Client(address) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        for rule in Acceptance:

            def generate(one: tuple[Prompt, int], rule: Acceptance = rule) -> SpeculationStats:
                prompt, seed = one
                return client.generate(
                    [{"role": "user", "content": prompt.text}],
                    temperature=1.0,
                    seed=seed,
                    max_tokens=options.max_tokens,
                    max_draft_tokens=options.draft_tokens,
                    drafter=DRAFTER,
                    acceptance=rule,
                ).speculation

            found[rule.value] = list(pool.map(generate, asked))
    return found


def row(rule: str, requests: Sequence[SpeculationStats]) -> dict[str, Any]:
    """What came of one rule."""
    drafts = sum(own.drafts for own in requests)
    drafted = sum(own.draft_tokens for own in requests)
    accepted = sum(own.accepted_tokens for own in requests)
    # Of a ratio of sums over independent requests (delta method).
    rests = [own.accepted_tokens - accepted / drafts * own.drafts for own in requests]
    error = math.sqrt(sum(rest * rest for rest in rests)) / drafts
    return {
        "rule": rule,
        "requests": len(requests),
        "rounds_with_a_proposal": drafts,
        "draft_tokens": drafted,
        "accepted": accepted,
        "accepted_per_draft_token": round(accepted / drafted, 4),
        "tokens_per_round": round(1 + accepted / drafts, 3),
        "standard_error_of_tokens_per_round": round(error, 3),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows."""
    table = Table(title="Acceptance by rule, temperature 1")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name == "rule" else "right")
    for one in rows:
        table.add_row(*map(str, one.values()))
    Console(width=130).print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=here / "prompts_smoke.jsonl")
    parser.add_argument("--samples", type=int, default=2, help="seeds for each prompt")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--json", type=Path, default=here / "out" / "acceptance_rules.json")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], help="path=value, as for serve"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, print, write."""
    options = arguments()
    # Proposals are waited for: a busy machine must not turn rounds into plain ones.
    overrides = overrides_for(None, [*options.overrides, "verifier.patience_ms=10000"])
    origin = provenance()  # of the code that the services start with
    with running_stack(None, overrides) as ready:
        found = measure(ready["grpc"], read_prompts(options.prompts), options)
    rows = [row(rule, requests) for rule, requests in found.items()]
    show(rows)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    figures = {"draft_tokens": options.draft_tokens, "rows": rows, "provenance": origin}
    options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
