"""What a tree of draft tokens costs the verifier's engine, next to a chain of as many and to a plain step.

    python bench/tree_step.py [MODEL] [--contexts 300 900] [--tree 3,2,1,1]

Batch 1. All are measured in turns within one process, so that drift of the machine cancels; medians are
reported, and their ratios to the plain step of one token are what counts.
"""

from __future__ import annotations

import argparse
import statistics
import time

from outrider.catalogue import resolve
from outrider.config.schema import EngineConfig
from outrider.core.trees import TokenTree
from outrider.engine.api import SequenceHandle, StepItem
from outrider.engine.engine import Engine


def static_tree(branches: tuple[int, ...]) -> TokenTree:
    """A root and the nodes of a shape below it."""
    ids, parents, level = [100], [-1], [0]
    for count in branches:
        fresh = []
        for parent in level:
            for _ in range(count):
                fresh.append(len(ids))
                ids.append(100 + len(ids))
                parents.append(parent)
        level = fresh
    return TokenTree(tuple(ids), tuple(parents))


def prefilled(engine: Engine, length: int) -> SequenceHandle:
    """A sequence of so many tokens."""
    tokens = [1000 + index % 7919 for index in range(length)]
    sequence = engine.open(tokens)
    for start in range(0, length, 256):
        chunk = TokenTree.chain(tokens[start : start + 256])
        engine.reserve(sequence, len(chunk))
        engine.step([StepItem(sequence, chunk, logits="none")])
        engine.commit(sequence, range(len(chunk)))
    return sequence


def medians(engine: Engine, context: int, trees: dict[str, TokenTree], repeats: int) -> dict[str, float]:
    """Milliseconds of a step of each tree."""
    sequence = prefilled(engine, context)
    engine.reserve(sequence, max(map(len, trees.values())))
    times: dict[str, list[float]] = {name: [] for name in trees}
    for repeat in range(repeats + 2):
        for name, tree in trees.items():
            start = time.perf_counter()
            engine.step([StepItem(sequence, tree)])
            if repeat >= 2:  # the first ones warm up
                times[name].append((time.perf_counter() - start) * 1e3)
    engine.release(sequence)
    return {name: statistics.median(own) for name, own in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct", help="catalogue name or folder")
    parser.add_argument("--contexts", type=int, nargs="+", default=[300, 900])
    parser.add_argument("--tree", default="3,2,1,1", help="branches by depth")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    config = EngineConfig(dtype=arguments.dtype, threads=arguments.threads, pool_tokens=8192)
    engine = Engine.load(resolve(arguments.model), config)
    tree = static_tree(tuple(map(int, arguments.tree.split(","))))
    trees = {
        "one token": TokenTree.chain([100]),
        f"chain of {len(tree)}": TokenTree.chain(tree.token_ids),
        f"tree {arguments.tree} ({len(tree)})": tree,
    }
    for context in arguments.contexts:
        found = medians(engine, context, trees, arguments.repeats)
        plain = found["one token"]
        for name, took in found.items():
            print(f"context {context}: {name}: {took:.1f} ms, {took / plain:.2f}x")


if __name__ == "__main__":
    main()
