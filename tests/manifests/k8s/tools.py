"""helm and kubectl, as `scripts/fetch_helm.py` fetches them."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "k8s" / "outrider"


@functools.cache
def _folder() -> Path:
    command = [sys.executable, str(ROOT / "scripts" / "fetch_helm.py")]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    assert fetched.returncode == 0, fetched.stderr
    return Path(fetched.stdout.strip())


def run(program: str, *arguments: str | Path) -> str:
    """What it printed; AssertionError with its complaint if it failed."""
    done = attempt(program, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def attempt(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `helm` or `kubectl`, whatever comes of it."""
    command = [str(_folder() / program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def template(*arguments: str | Path) -> str:
    """What the chart renders with these options, in a namespace of its own."""
    return run("helm", "template", "demo", CHART, "--namespace", "prod", *arguments)
