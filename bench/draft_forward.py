"""Times one forward of a draft model in the engine, as a drafter runs it for one session."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

from outrider.catalogue import resolve
from outrider.config.schema import DrafterConfig
from outrider.core.trees import TokenTree
from outrider.drafting.vocabulary import load_vocabulary
from outrider.engine.api import StepItem
from outrider.engine.engine import Engine

CONTEXT = 256  # tokens in the KV cache
REPEATS = 60


def draft_forward_ms(config: DrafterConfig) -> float:
    """Median of a step of one token over CONTEXT tokens, in milliseconds."""
    folder = resolve(config.model)
    engine = Engine.load(folder, config, name=Path(config.model).name, head_rows=load_vocabulary(folder))
    sequence = engine.open(list(range(CONTEXT)))
    times = []

    def step(tokens: list[int]) -> None:
        if not engine.reserve(sequence, len(tokens)):
            raise RuntimeError("the pool is too small for the measurement")
        start = perf_counter()
        engine.step([StepItem(sequence, TokenTree.chain(tokens), "last")])
        times.append(perf_counter() - start)
        engine.commit(sequence, range(len(tokens)))

    step(list(range(CONTEXT)))
    for number in range(REPEATS):
        step([number])
    engine.release(sequence)
    return 1000 * median(times[1:])
