"""All tests, in parts, two at a time (on one core, one), the longest first.

Each part is a pytest of its own, which keeps processes small, and has a limit, so that one that hangs costs
no more than that. What a part said is printed when it has ended. Arguments go to pytest. Exit status: 0 if
all passed.

    python scripts/run_tests.py -q
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALONE = (
    "tests/integration/verifying",
    "tests/integration/gateway",
    "tests/e2e/rayserve",
    "tests/e2e",
    "tests/faults",
    "tests/unit",
    "tests/integration",
)
"""Folders that are a part of their own, without those before them in this list, the longest first. What is in
none of them is one more part."""
WORKERS = 2
LIMIT_S = 45 * 60.0
"""Of a part: no test may take longer than its own limit, but what is around tests may hang too."""
GRACE_S = 30.0
"""To say which test it was, once a part is told to stop."""
NO_TESTS = 5
"""pytest's exit status where none was selected."""


@dataclass(frozen=True)
class Done:
    """A part that has run."""

    name: str
    status: int
    seconds: float
    said: str

    @property
    def passed(self) -> bool:
        """Whether no test of it failed."""
        return self.status in (0, NO_TESTS)


def parts(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of each part; every folder of tests is in one of them."""
    seen: list[str] = []
    for folder in (*ALONE, "tests"):
        inner = [other for other in seen if other.startswith(f"{folder}/")]
        seen.append(folder)
        if (root / folder).is_dir():
            yield folder, [folder, *(f"--ignore={other}" for other in inner)]


def run(name: str, selected: list[str], arguments: list[str]) -> Done:
    """Run one part to its end, or to its limit."""
    cache = f"cache_dir=.pytest_cache/{name.replace('/', '-')}"
    command = [sys.executable, "-m", "pytest", "-o", cache, *selected, *arguments]
    since = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            said.write(f"\nnot done within {LIMIT_S:.0f} s: stopped\n")
            said.flush()
            status = _stop(process)
        said.seek(0)
        return Done(name, status, time.monotonic() - since, said.read())


def _stop(process: subprocess.Popen[bytes]) -> int:
    """End it as Ctrl-C does, and if that is of no use, by force; never a success."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return process.returncode or 1


def main(arguments: list[str]) -> int:
    """Run all parts, and say in the end how each one went."""
    done: list[Done] = []
    with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as workers:
        waiting = [workers.submit(run, *part, arguments) for part in parts(ROOT)]
        for future in as_completed(waiting):
            done.append(future.result())
            print(f"==== {done[-1].name}\n{done[-1].said}", flush=True)
    for part in done:
        print(f"{'passed' if part.passed else 'FAILED':6} {part.seconds:6.0f} s  {part.name}")
    return int(not all(part.passed for part in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
