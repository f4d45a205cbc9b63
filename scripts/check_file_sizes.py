"""Fails if a tracked Python source file is longer than a reader can hold in mind.

Run from anywhere inside the repository: `python scripts/check_file_sizes.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT = 400  # lines
FOLDERS = ("services", "tests", "bench", "scripts")
GENERATED = "services/outrider/wire/v1/"  # protoc decides how long these are


def tracked_sources(root: Path) -> list[Path]:
    """The Python files that git tracks under FOLDERS, generated stubs left out."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--", *FOLDERS], cwd=root, check=True, capture_output=True, text=True
    ).stdout
    names = [name for name in listing.split("\0") if name.endswith(".py") and not name.startswith(GENERATED)]
    # A file that was deleted but not yet committed is still listed.
    return [root / name for name in names if (root / name).is_file()]


def too_long(root: Path) -> list[tuple[str, int]]:
    """Name and number of lines of every file over LIMIT, longest first."""
    counts = [
        (path.relative_to(root).as_posix(), len(path.read_text(encoding="utf-8").splitlines()))
        for path in tracked_sources(root)
    ]
    return sorted((entry for entry in counts if entry[1] > LIMIT), key=lambda entry: -entry[1])


def main() -> int:
    """Print the offenders; 1 if there are any."""
    offenders = too_long(Path(__file__).resolve().parent.parent)
    for name, lines in offenders:
        print(f"{name}: {lines} lines, at most {LIMIT} are allowed: split it by what it does")
    return 1 if offenders else 0


if __name__ == "__main__":
    sys.exit(main())
