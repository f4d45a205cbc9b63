"""All tests, in two halves side by side: those that start whole stacks of processes, and all others.

The first half mostly waits for processes to start and to die, so on two cores both take little longer than
one. With one core they run one after the other. Exit status: 0 if both passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

HALVES = {"stacks": ("tests/e2e", "tests/faults"), "parts": ("tests/unit", "tests/integration")}


def pytest(name: str, arguments: list[str]) -> list[str]:
    """The command of one half."""
    return [
        sys.executable,
        "-m",
        "pytest",
        "-o",
        f"cache_dir=.pytest_cache/{name}",
        *HALVES[name],
        *arguments,
    ]


def main(arguments: list[str]) -> int:
    """Run both; what the first half said comes after the second one has ended."""
    if (os.cpu_count() or 1) < 2:
        codes = [subprocess.run(pytest(name, arguments), check=False).returncode for name in HALVES]
        return int(any(codes))
    with tempfile.TemporaryFile("w+") as said:
        stacks = subprocess.Popen(pytest("stacks", arguments), stdout=said, stderr=subprocess.STDOUT)
        try:
            parts = subprocess.run(pytest("parts", arguments), check=False).returncode
            status = stacks.wait()
        finally:
            stacks.terminate()
        said.seek(0)
        print(said.read(), flush=True)
    return int(parts != 0 or status != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
