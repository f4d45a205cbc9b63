"""The examples of docs/client.md, each run as it stands against a real stack."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack import ENVIRONMENT, Stack

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 9
    assert all("127.0.0.1:9000" in example for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(tiny: Stack, tmp_path: Path, example: str) -> None:
    code = example.replace("127.0.0.1:9000", tiny.grpc)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or "assert" in example
