"""A drafter that looks text up carries neither torch nor transformers: it starts at once and stays small."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import outrider.drafting.server
from outrider.config.schema import DrafterConfig
from outrider.drafting.factory import build_method
build_method(DrafterConfig(method=sys.argv[1]), "target")
print(",".join(name for name in ("torch", "transformers") if name in sys.modules))
"""


@pytest.mark.parametrize("method", ["prompt_lookup", "suffix"])
def test_nothing_heavy_is_imported(method: str) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM, method], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
