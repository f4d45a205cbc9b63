"""Time of one engine step next to the plain Hugging Face forward (DynamicCache), same model, same tokens.

    python bench/engine_step.py [MODEL] [--json OUT.json]

Batch 1. The two are measured in turns within one process, so that drift of the machine cancels;
medians are reported. The ratio (engine / Hugging Face) is what counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from outrider.benchmark.provenance import provenance
from outrider.catalogue import resolve
from outrider.config.schema import EngineConfig
from outrider.core.trees import TokenTree
from outrider.engine.api import StepItem
from outrider.engine.engine import Engine


def engine_step(engine: Engine, context: list[int], tokens: list[int]) -> Callable[[], None]:
    """A step of `tokens` on top of `context`; repeats leave the sequence as it was."""
    sequence = engine.open(context)
    for start in range(0, len(context), 256):
        chunk = TokenTree.chain(context[start : start + 256])
        engine.reserve(sequence, len(chunk))
        engine.step([StepItem(sequence, chunk, logits="none")])
        engine.commit(sequence, range(len(chunk)))
    engine.reserve(sequence, len(tokens))
    item = StepItem(sequence, TokenTree.chain(tokens))
    return lambda: engine.step([item]) and None


def plain_step(model: Any, context: list[int], tokens: list[int]) -> Callable[[], None]:
    """The same with transformers: forward over a DynamicCache, then crop it back."""
    cache = transformers.DynamicCache(config=model.config)
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        model(input_ids=torch.tensor([context]), cache=cache)

    def run() -> None:
        with torch.inference_mode():
            model(input_ids=ids, cache=cache)
            cache.crop(-len(tokens))

    return run


def interleaved(actions: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each action, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for repeat in range(repeats + 3):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if repeat >= 3:  # the first ones warm up
                times[name].append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct", help="catalogue name or folder")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--generic", action="store_true", help="measure the engine's generic path")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = resolve(options.model)
    config = EngineConfig(dtype=options.dtype, pool_tokens=4096, threads=options.threads)
    engine = Engine.load(folder, config, lean=not options.generic)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, options.dtype), local_files_only=True
    ).eval()
    generator = torch.Generator().manual_seed(1)
    context = torch.randint(0, engine.info.vocab_size, (options.context,), generator=generator).tolist()
    rows = []
    for count in options.tokens:
        tokens = context[:count]
        times = interleaved(
            {"engine": engine_step(engine, context, tokens), "plain": plain_step(model, context, tokens)},
            options.repeats,
        )
        engine_ms, plain_ms = (statistics.median(times[name]) for name in ("engine", "plain"))
        row = {
            "tokens": count,
            "context": options.context,
            "engine_ms": round(engine_ms, 2),
            "plain_ms": round(plain_ms, 2),
            "ratio": round(engine_ms / plain_ms, 3),
            "engine_best_ms": round(min(times["engine"]), 2),
            "plain_best_ms": round(min(times["plain"]), 2),
            "batch_invariance": engine.batch_invariance,
        }
        rows.append(row)
        print(" ".join(f"{name}={value}" for name, value in row.items()))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps(
                {"rows": rows, "threads": torch.get_num_threads(), "provenance": provenance()}, indent=2
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
