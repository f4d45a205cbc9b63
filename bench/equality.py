"""Is the output with speculation on the output with it off, token for token?

For every prompt of a JSONL file, each drafter (`mixed`: the drafters take prompts in turn, side by side),
concurrency 1 and 8, greedy and seeded (T=1, or `nucleus`: T=0.8 with top-p 0.95), bf16 and fp32; and is
greedy fp32 what `transformers.generate` gives? Long (hours on two cores), so every
answer is kept at once and a second call goes on where the first one stopped:

    python bench/equality.py --prompts FILE.jsonl --out bench/out/equality.jsonl
    python bench/equality.py --prompts FILE.jsonl --out ... --dtypes float32 --concurrency 8   # a part
    python bench/equality.py --prompts FILE.jsonl --out ... --report                           # only judge

Ends with 1 if anything differs that counts, or is missing. Against transformers, a first divergence
whose top-1 to top-2 margin is under 1e-4 does not count: there another order of summation may tip
the scales.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from equality_oracle import ORACLE, answer_missing, margin_at
from outrider.benchmark.client import Client, RequestOptions
from outrider.benchmark.measure import Runner, Sample
from outrider.benchmark.provenance import commit, provenance
from outrider.benchmark.stack import overrides_for, running_stack
from outrider.benchmark.workload import OFF, Block, Prompt, read_prompts

MODES = {"greedy": (0.0, 1.0), "seeded": (1.0, 1.0), "nucleus": (0.8, 0.95)}  # name -> temperature, top-p
MIXED = "mixed"
DRAFTERS = ("prompt_lookup", "eagle")
TIE = 1e-4  # logits


@dataclass(frozen=True, slots=True)
class Case:
    """One way to run all prompts."""

    dtype: str
    mode: str
    drafter: str
    concurrency: int


@dataclass
class Answers:
    """Answers kept in a JSONL file; lines of other prompts or lengths are left alone."""

    path: Path
    max_tokens: int
    seed: int

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.commit = commit()
        self.known: dict[tuple[Case, str], dict[str, Any]] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            entry = json.loads(line)
            if (entry["max_tokens"], entry["seed"]) == (self.max_tokens, self.seed):
                case = Case(entry["dtype"], entry["mode"], entry["drafter"], entry["concurrency"])
                self.known[case, entry["prompt"]] = entry

    def add(self, case: Case, prompt: Prompt, token_ids: list[int], **more: Any) -> None:
        """Keep one answer, on disk at once."""
        entry = {
            "dtype": case.dtype,
            "mode": case.mode,
            "drafter": case.drafter,
            "concurrency": case.concurrency,
            "prompt": key_of(prompt),
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "token_ids": token_ids,
            "commit": self.commit,
            **more,
        }
        self.known[case, key_of(prompt)] = entry
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def token_ids(self, case: Case, prompt: Prompt) -> list[int] | None:
        """What was answered, if it was."""
        entry = self.known.get((case, key_of(prompt)))
        return entry["token_ids"] if entry else None

    def commits(self, case: Case) -> set[str]:
        """What served the answers of a case."""
        return {str(entry.get("commit")) for (own, _), entry in self.known.items() if own == case}


def key_of(prompt: Prompt) -> str:
    """Id of a prompt that changes with its text."""
    return f"{prompt.prompt_id}:{hashlib.sha256(prompt.text.encode()).hexdigest()[:8]}"


def cases(options: argparse.Namespace, dtype: str) -> Iterator[Case]:
    """All ways to run with one dtype: the cheap, wide ones first, so that defects show early."""
    for concurrency in sorted(options.concurrency, reverse=True):
        for mode in options.modes:
            for drafter in options.drafters:
                yield Case(dtype, mode, drafter, concurrency)


async def run_cases(url: str, todo: Sequence[Case], prompts: Sequence[Prompt], answers: Answers) -> None:
    """Answer what is missing of these cases, against one gateway."""
    async with Client(url) as client:
        model = await client.model()
        with Progress(console=Console(stderr=True)) as progress:
            for case in todo:
                name = f"{case.dtype} {case.mode} {case.drafter} x{case.concurrency}"
                task = progress.add_task(name, total=len(prompts))
                temperature, top_p = MODES[case.mode]
                options = RequestOptions(answers.max_tokens, temperature, answers.seed, top_p=top_p)
                runner = Runner(client, model, options)
                # As many blocks as it takes to lose little when stopped, few enough to keep the batch full.
                size = 1 if case.concurrency == 1 else 3 * case.concurrency
                missing = [prompt for prompt in prompts if answers.token_ids(case, prompt) is None]
                progress.advance(task, len(prompts) - len(missing))
                for start in range(0, len(missing), size):
                    for sample in await run_side_by_side(runner, case, missing[start : start + size]):
                        own = sample.answer
                        answers.add(
                            case, sample.prompt, own.token_ids, rounds=own.rounds, accepted=own.accepted
                        )
                        progress.advance(task)


async def run_side_by_side(runner: Runner, case: Case, prompts: Sequence[Prompt]) -> list[Sample]:
    """Answer prompts with the case's drafter, or with all in turn, each with its share of the concurrency."""
    drafters = DRAFTERS if case.drafter == MIXED else (case.drafter,)
    share = max(1, case.concurrency // len(drafters))
    parts = [tuple(prompts[index :: len(drafters)]) for index in range(len(drafters))]
    runs = [
        runner.run(Block(0, drafter, part), share)
        for drafter, part in zip(drafters, parts, strict=True)
        if part
    ]
    return [sample for samples in await asyncio.gather(*runs) for sample in samples]


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token that differs, None if there is none."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def judge(case: Case, reference: Case, prompts: Sequence[Prompt], answers: Answers) -> dict[str, Any]:
    """Compare the answers of two cases, prompt by prompt."""
    compared, differing = 0, []
    tokens = 0
    for prompt in prompts:
        own, theirs = answers.token_ids(case, prompt), answers.token_ids(reference, prompt)
        if own is None or theirs is None:
            continue
        compared += 1
        tokens += len(own)
        place = first_difference(own, theirs)
        if place is not None:
            differing.append({"prompt": prompt.prompt_id, "token": place})
    return {
        "dtype": case.dtype,
        "mode": case.mode,
        "drafter": case.drafter,
        "concurrency": case.concurrency,
        "reference": f"{reference.drafter} x{reference.concurrency}",
        "prompts": compared,
        "tokens": tokens,
        "identical": compared - len(differing),
        "differing": differing,
        "served_by": sorted(answers.commits(case) | answers.commits(reference)),
    }


def summary(options: argparse.Namespace, prompts: Sequence[Prompt], answers: Answers) -> list[dict[str, Any]]:
    """Every case against off alone at concurrency 1, and that one against transformers."""
    verdicts = []
    for dtype in options.dtypes:
        for case in cases(options, dtype):
            reference = Case(dtype, case.mode, OFF, min(options.concurrency))
            if case != reference:
                verdicts.append(judge(case, reference, prompts, answers))
    if options.oracle and "greedy" in options.modes and "float32" in options.dtypes:
        own = Case("float32", "greedy", OFF, min(options.concurrency))
        verdict = judge(own, ORACLE_CASE, prompts, answers)
        for entry in verdict["differing"]:
            prompt = next(one for one in prompts if one.prompt_id == entry["prompt"])
            theirs = answers.token_ids(ORACLE_CASE, prompt) or []
            entry["margin"] = margin_at(options.model, prompt, theirs[: entry["token"]])
            entry["counts"] = entry["margin"] >= TIE
        verdicts.append(verdict)
    return verdicts


ORACLE_CASE = Case("float32", "greedy", ORACLE, 1)


def show(verdicts: Sequence[dict[str, Any]]) -> int:
    """Print the summary; the number of differences that count."""
    table = Table("dtype", "mode", "drafter", "conc.", "against", "prompts", "tokens", "identical", "differs")
    failures = 0
    for verdict in verdicts:
        counting = [entry for entry in verdict["differing"] if entry.get("counts", True)]
        failures += len(counting)
        places = ", ".join(
            f"{entry['prompt']}@{entry['token']}" + (f" ({entry['margin']:.1e})" if "margin" in entry else "")
            for entry in verdict["differing"][:4]
        )
        row = [verdict[name] for name in ("dtype", "mode", "drafter", "concurrency", "reference")]
        table.add_row(*map(str, [*row, verdict["prompts"], verdict["tokens"], verdict["identical"], places]))
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    return failures


def arguments() -> argparse.Namespace:
    """The command line."""

    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL: id, category, turns")
    parser.add_argument(
        "--out", type=Path, required=True, help="JSONL of answers; the summary goes beside it"
    )
    parser.add_argument("--drafters", type=words, default=["off", "prompt_lookup", "eagle"])
    parser.add_argument("--dtypes", type=words, default=["bfloat16", "float32"])
    parser.add_argument(
        "--modes", type=words, default=["greedy", "seeded"], help="out of " + ", ".join(MODES)
    )
    parser.add_argument(
        "--concurrency", type=lambda text: [int(word) for word in words(text)], default=[1, 8]
    )
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, help="prompts, taken from the categories in turn")
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="for the comparison with transformers"
    )
    parser.add_argument("--no-oracle", dest="oracle", action="store_false", help="leave transformers out")
    parser.add_argument("--report", action="store_true", help="judge what is there; run nothing")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], help="path=value, as for serve"
    )
    return parser.parse_args()


def main() -> int:
    """Run what is missing, judge all of it."""
    options = arguments()
    prompts = read_prompts(options.prompts, options.limit)
    answers = Answers(options.out, options.max_tokens, options.seed)
    for dtype in () if options.report else options.dtypes:
        todo = [
            case
            for case in cases(options, dtype)
            if any(answers.token_ids(case, prompt) is None for prompt in prompts)
        ]
        if todo:
            overrides = [f"model={options.model}", f"verifier.dtype={dtype}", *options.overrides]
            with running_stack(None, overrides_for(None, overrides)) as ready:
                asyncio.run(run_cases(ready["http"], todo, prompts, answers))
    if options.oracle and not options.report and "float32" in options.dtypes and "greedy" in options.modes:
        missing = [prompt for prompt in prompts if answers.token_ids(ORACLE_CASE, prompt) is None]
        for prompt, token_ids in answer_missing(options.model, missing, options.max_tokens):
            answers.add(ORACLE_CASE, prompt, token_ids)
    verdicts = summary(options, prompts, answers)
    summary_path = options.out.with_suffix(".summary.json")
    summary_path.write_text(json.dumps({"verdicts": verdicts, "provenance": provenance()}, indent=1) + "\n")
    failures = show(verdicts)
    incomplete = sum(verdict["prompts"] < len(prompts) for verdict in verdicts)
    if incomplete:
        print(f"{incomplete} of {len(verdicts)} comparisons lack answers: run it again to go on")
    return 1 if failures or incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
