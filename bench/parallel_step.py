"""Time of a step of a model that several ranks share, next to the same model on one rank, on the same cores.

    python bench/parallel_step.py [MODEL] [--ranks 2] [--json OUT.json]

Batch 1. The two are measured in turns, so that drift of the machine cancels; one rank has all
cores, each of several its share. Without MODEL: random weights in the shape of a model of 150 M parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from engine_step import engine_step, interleaved
from outrider.benchmark.provenance import provenance
from outrider.catalogue import resolve
from outrider.cli.ranks import LocalRanks
from outrider.config.schema import VerifierConfig
from outrider.engine.engine import Engine
from outrider.engine.parallel.opening import open_engine
from random_models import Shape, make

SHAPE = Shape(hidden=768, layers=16, heads=12, kv_heads=4, intermediate=2048)


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    """A row for each number of tokens."""
    cores = torch.get_num_threads()
    config = VerifierConfig(dtype=options.dtype, pool_tokens=4096, batch_invariance="off")
    shared = open_engine(
        folder,
        config.model_copy(update={"tensor_parallel": options.ranks, "rank_timeout_s": 300.0}),
        launcher=LocalRanks("warning"),
    )
    alone = Engine.load(folder, config)
    generator = torch.Generator().manual_seed(1)
    context = torch.randint(0, alone.info.vocab_size, (options.context,), generator=generator).tolist()

    def with_threads(engine: Engine, threads: int, count: int) -> Callable[[], None]:
        torch.set_num_threads(threads)
        step = engine_step(engine, context, context[:count])

        def run() -> None:
            torch.set_num_threads(threads)
            step()

        return run

    rows: list[dict[str, object]] = []
    for count in options.tokens:
        times = interleaved(
            {
                "one": with_threads(alone, cores, count),
                "several": with_threads(shared, max(1, cores // options.ranks), count),
            },
            options.repeats,
        )
        one, several = (statistics.median(times[name]) for name in ("one", "several"))
        rows.append(
            {
                "tokens": count,
                "context": options.context,
                "ranks": options.ranks,
                "one_ms": round(one, 2),
                "several_ms": round(several, 2),
                "ratio": round(several / one, 3),
                "one_best_ms": round(min(times["one"]), 2),
                "several_best_ms": round(min(times["several"]), 2),
            }
        )
        print(" ".join(f"{name}={value}" for name, value in rows[-1].items()), flush=True)
    shared.close()
    return rows


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of the ranks to come: they share these cores
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="catalogue name or folder")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 6, 64])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="outrider-") as scratch:
        folder = resolve(options.model) if options.model else make(Path(scratch), SHAPE)
        rows = measure(folder, options)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"rows": rows, "provenance": provenance()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
