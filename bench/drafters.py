"""What each way to draft brings: tokens a round, acceptance by depth, speed against off. Batch 1.

    python bench/drafters.py --prompts FILE.jsonl --config STACK.yaml --out bench/out/drafters.jsonl
    python bench/drafters.py --prompts FILE.jsonl --out ... --limit 13 --max-tokens 64     # small
    python bench/drafters.py --prompts FILE.jsonl --out ... --report                       # only the table

One stack holds all drafters of the configuration (the demo's, if none is given). Every prompt goes to each of
them and to `off` in turn, one at a time, before the next prompt, and none is always first: drift of the
machine cancels. Every answer is kept at once; a second call goes on where the first one stopped.

- tokens/round: tokens delivered over verification steps.
- x off: for each prompt and repeat, tokens per second (of the whole request) over those of `off`; the median.
- accepted at depth k: of all rounds with drafts, those in which at least k draft tokens were accepted.
- same: answers with the tokens of `off`. Anything less than all is a defect, and the exit status is 1.

Beside the answers it writes a summary with provenance (`*.summary.json`) and the table (`*.md`).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from drafters_table import Measured, markdown, summarize
from outrider.benchmark.client import Answer, Client, RequestOptions
from outrider.benchmark.provenance import provenance
from outrider.benchmark.stack import overrides_for, running_stack
from outrider.benchmark.workload import OFF, Prompt, plan, read_prompts
from outrider.config import load_config

FUSED = "fused"


@dataclass
class Kept:
    """Answers in a JSONL file, each on disk at once."""

    path: Path

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text().splitlines() if self.path.exists() else ()
        self.known = {one.key: one for one in (Measured(**json.loads(line)) for line in lines)}

    def add(self, one: Measured) -> None:
        """Keep one."""
        self.known[one.key] = one
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")


def measured(answer: Answer, prompt: Prompt, case: tuple[str, float, int], max_tokens: int) -> Measured:
    """What is kept of an answer."""
    drafter, temperature, repeat = case
    tokens = ",".join(map(str, answer.token_ids))
    return Measured(
        prompt=key_of(prompt),
        category=prompt.category,
        drafter=drafter,
        temperature=temperature,
        repeat=repeat,
        max_tokens=max_tokens,
        tokens=len(answer.token_ids),
        seconds=round(answer.done - answer.sent, 6),
        first_s=round(answer.arrivals[0][0] - answer.sent, 6) if answer.arrivals else 0.0,
        rounds=answer.rounds,
        drafted=answer.drafted,
        accepted=answer.accepted,
        missed=answer.missed,
        accepted_by_round={str(place): count for place, count in sorted(answer.accepted_by_round.items())},
        text_hash=hashlib.sha256(tokens.encode()).hexdigest()[:16],
    )


def key_of(prompt: Prompt) -> str:
    """Id of a prompt that changes with its text."""
    return f"{prompt.prompt_id}:{hashlib.sha256(prompt.text.encode()).hexdigest()[:8]}"


def missing(
    options: argparse.Namespace, prompts: Sequence[Prompt], drafters: Sequence[str], kept: Kept
) -> Iterator[tuple[Prompt, tuple[str, float, int]]]:
    """What is still to be asked, in order."""
    for repeat in range(options.repeats):
        for temperature in options.temperatures:
            for block in plan(prompts, drafters, 1):
                case = (block.drafter, temperature, repeat)
                for prompt in block.prompts:
                    if (key_of(prompt), *case, options.max_tokens) not in kept.known:
                        yield prompt, case


async def run(
    url: str,
    options: argparse.Namespace,
    todo: Sequence[tuple[Prompt, tuple[str, float, int]]],
    kept: Kept,
) -> None:
    """Ask all of it, one at a time; the first request to each drafter is not counted."""
    async with Client(url) as client:
        model = await client.model()
        warm: set[str] = set()
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("answers", total=len(todo))
            for prompt, case in todo:
                drafter, temperature, _ = case
                request = RequestOptions(options.max_tokens, temperature, options.seed)
                if drafter not in warm:
                    await client.generate(model, prompt, drafter, request)
                    warm.add(drafter)
                answer = await client.generate(model, prompt, drafter, request)
                kept.add(measured(answer, prompt, case, options.max_tokens))
                progress.advance(task)


def arguments() -> argparse.Namespace:
    """The command line."""

    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[float]:
        return [float(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL: id, category, turns")
    parser.add_argument("--out", type=Path, required=True, help="JSONL of answers")
    parser.add_argument("--config", type=Path, help="configuration of the stack; default: the demo's")
    parser.add_argument(
        "--drafters", type=words, help="default: off, all of the configuration, fused if these are several"
    )
    parser.add_argument("--temperatures", type=numbers, default=[0.0, 1.0])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, help="prompts, taken from the categories in turn")
    parser.add_argument("--report", action="store_true", help="only the table of what is there")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], help="path=value, as for serve"
    )
    return parser.parse_args()


def main() -> int:
    """Ask what is missing, then write summary and table."""
    options = arguments()
    prompts = read_prompts(options.prompts, options.limit)
    configured = list(load_config(options.config, options.overrides).drafters)
    several = [FUSED] if len(configured) > 1 else []
    drafters = options.drafters or [OFF, *configured, *several]
    kept = Kept(options.out)
    todo = [] if options.report else list(missing(options, prompts, drafters, kept))
    if todo:
        overrides = overrides_for(options.config, ["verifier.dtype=bfloat16", *options.overrides])
        with running_stack(options.config, overrides) as ready:
            asyncio.run(run(ready["http"], options, todo, kept))
    chosen = {key_of(prompt) for prompt in prompts}
    samples = [
        one
        for one in kept.known.values()
        if one.prompt in chosen and one.drafter in drafters and one.max_tokens == options.max_tokens
    ]
    rows = summarize(samples, drafters)
    summary = {"rows": [asdict(row) for row in rows], "provenance": provenance()}
    options.out.with_suffix(".summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    table = markdown(rows)
    options.out.with_suffix(".md").write_text(table)
    print(table)
    return 0 if all(row.same == row.compared for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
