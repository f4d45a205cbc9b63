"""Prometheus' own programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def promtool() -> Callable[..., str]:
    """Runs promtool with arguments; gives what it said, and fails the test if it was not content."""
    fetched = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fetch_prometheus.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert fetched.returncode == 0, fetched.stderr

    def run(*arguments: str | Path) -> str:
        command = [str(Path(fetched.stdout.strip()) / "promtool"), *map(str, arguments)]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stdout + said.stderr
        return said.stdout

    return run
