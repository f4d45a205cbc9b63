"""What sampling costs a row: edits of several kinds, then the coupled pick.

    python bench/sampling_cost.py [--vocab 49152] [--rows 1 8 64] [--json OUT.json]

Rows come as rounds have them: sessions of up to eight rows, the draft tokens of a chain above each. Every
session has a prompt of 1000 tokens and 300 generated ones. Probabilities fall with the rank to the power of
1.5. All kinds are measured in turns within one process, so that drift of the machine cancels; medians are
reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from outrider.benchmark.provenance import provenance
from outrider.core.editing import LogitRow, edit_logits, is_edited
from outrider.core.history import TokenHistory
from outrider.core.params import LogitEdits, SamplingParams
from outrider.core.sampling import coupled_picks

PROMPT, OUTPUT, CHAIN = 1000, 300, 8
KINDS = {
    "none": SamplingParams(),
    "greedy": SamplingParams(temperature=0.0),
    "top_p": SamplingParams(top_p=0.95),
    "typical_p": SamplingParams(typical_p=0.9),
    "bias": SamplingParams(edits=LogitEdits(logit_bias=tuple((7 * i, 1.0) for i in range(100)))),
    "bad_words": SamplingParams(edits=LogitEdits(bad_words=tuple((i, i + 1, i + 2) for i in range(100)))),
    "repetition": SamplingParams(edits=LogitEdits(repetition_penalty=1.1)),
    "frequency": SamplingParams(edits=LogitEdits(frequency_penalty=0.5, presence_penalty=0.5)),
    "mask": SamplingParams(),
}


def rows_of(kind: str, count: int, vocab: int, generator: torch.Generator) -> list[LogitRow]:
    """Rows of sessions with histories of their own."""
    rows: list[LogitRow] = []
    mask = torch.full((-(-vocab // 32),), -1, dtype=torch.int32) if kind == "mask" else None
    for start in range(0, count, CHAIN):
        history = TokenHistory(PROMPT)
        tokens = torch.randint(0, vocab, (PROMPT + OUTPUT + CHAIN,), generator=generator).tolist()
        history.keep_up(tokens[:-CHAIN])
        chain = tokens[-CHAIN:]
        rows += [LogitRow(KINDS[kind], history, chain[:n], mask) for n in range(min(CHAIN, count - start))]
    return rows


def microseconds(action: Callable[[], object]) -> float:
    """How long it takes now."""
    began = time.perf_counter()
    action()
    return 1e6 * (time.perf_counter() - began)


def measure(vocab: int, count: int, repeats: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Median microseconds a row of each kind."""
    generator = torch.Generator().manual_seed(count)
    ranks = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(count)])
    logits = ((ranks + 1.0).log() * -1.5).to(device)
    rows = {kind: rows_of(kind, count, vocab, generator) for kind in KINDS}
    times: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in KINDS}
    for turn in range(repeats + 3):
        for kind, own in rows.items():
            fresh = logits.clone()
            edits = kind == "mask" or is_edited(KINDS[kind])
            editing = microseconds(lambda own=own, fresh=fresh: edit_logits(fresh, own)) if edits else 0.0
            drawn = [(row.sampling, 1000 + turn) for row in own]
            picking = microseconds(lambda drawn=drawn, fresh=fresh: coupled_picks(fresh, drawn).tolist())
            if turn >= 3:  # the first turns warm up
                times[kind][0].append(editing / count)
                times[kind][1].append(picking / count)
    return {
        kind: {
            "edit_us_per_row": round(statistics.median(editing), 1),
            "pick_us_per_row": round(statistics.median(picking), 1),
        }
        for kind, (editing, picking) in times.items()
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    measured = []
    for count in options.rows:
        for kind, row in measure(options.vocab, count, options.repeats, torch.device(options.device)).items():
            measured.append({"rows": count, "kind": kind, **row})
            print(" ".join(f"{name}={value}" for name, value in measured[-1].items()))
    if options.json:
        told = {name: getattr(options, name) for name in ("vocab", "repeats", "threads", "device")}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps({"rows": measured, **told, "provenance": provenance()}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
