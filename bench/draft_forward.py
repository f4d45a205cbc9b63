"""Times one forward of a draft model in the engine, as a drafter runs it for one session.

In a process of its own with the environment of a stack's services, where it also prints the median:

    python bench/draft_forward.py CONFIG.yaml DRAFTER
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from outrider.cli.stack import child_env
from outrider.config import OutriderConfig, dump_config, load_config

CONTEXT = 256  # tokens in the KV cache
REPEATS = 100


def draft_forward_ms(config: OutriderConfig, drafter: str) -> float:
    """Median of a step of one token over CONTEXT tokens, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(dump_config(config))
        command = [sys.executable, __file__, str(path), drafter]
        done = subprocess.run(command, env=child_env(), check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def main(path: Path, drafter: str) -> None:
    """Measure and print."""
    # Imported here so that the parent process stays free of torch and its threads.
    from outrider.catalogue import resolve
    from outrider.core.trees import TokenTree
    from outrider.drafting.vocabulary import load_vocabulary
    from outrider.engine.api import StepItem
    from outrider.engine.engine import Engine

    config = load_config(path).drafters[drafter]
    folder = resolve(config.model)
    engine = Engine.load(folder, config, name=folder.name, head_rows=load_vocabulary(folder))
    sequence = engine.open(list(range(CONTEXT)))
    times = []
    for tokens in (list(range(CONTEXT)), *([number] for number in range(REPEATS))):
        if not engine.reserve(sequence, len(tokens)):
            raise RuntimeError("the pool is too small for the measurement")
        start = perf_counter()
        engine.step([StepItem(sequence, TokenTree.chain(tokens), "last")])
        times.append(perf_counter() - start)
        engine.commit(sequence, range(len(tokens)))
    print(f"{1000 * median(times[1:]):.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
