"""Where a figure comes from: command, commit, versions, machine, date."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = {"outrider": "outrider", "torch": "torch", "transformers": "transformers", "grpc": "grpcio"}
"""Name in the provenance -> name of the distribution."""


def provenance(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """All of it, ready for JSON. The command keeps file names but drops folders, which are private."""
    return {
        "command": _command(sys.argv if argv is None else argv),
        "commit": commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _command(argv: Sequence[str]) -> str:
    return shlex.join(Path(word).name if word.startswith("/") else word for word in argv)


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, distribution in PACKAGES.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit of the source tree, with "+" after it if tracked files have changed; None outside one."""
    folder = Path(__file__).resolve().parent
    try:
        # Fails if this file is installed inside somebody else's repository.
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
        name = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return name + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> dict[str, Any]:
    """CPU model, cores this process may use, memory in GiB."""
    return {"cpu": _cpu_model(), "cores": _cores(), "memory_gib": _memory_gib(), "system": platform.system()}


def _cores() -> int:
    # A container may run on fewer cores than the machine has.
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
