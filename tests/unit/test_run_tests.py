"""The script that runs all tests forgets none, and does not wait for ever."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", ROOT / "scripts" / "run_tests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks
    spec.loader.exec_module(module)
    return module


def test_every_test_is_in_one_part(script: ModuleType) -> None:
    found: Counter[Path] = Counter()
    for _, (folder, *ignored) in script.parts(ROOT):
        away = [ROOT / option.removeprefix("--ignore=") for option in ignored]
        for file in (ROOT / folder).rglob("test_*.py"):
            found[file] += not any(file.is_relative_to(one) for one in away)
    assert found == Counter(dict.fromkeys((ROOT / "tests").rglob("test_*.py"), 1))


def test_a_part_that_hangs_is_stopped_and_says_where(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "test_hangs.py"
    hangs.write_text("import signal\n\ndef test_waits():\n    signal.pause()\n")
    monkeypatch.setattr(script, "LIMIT_S", 10.0)
    done = script.run("hangs", [str(hangs)], ["-q", "-p", "no:cacheprovider"])
    assert not done.passed
    assert "not done within 10 s" in done.said
    assert "test_waits" in done.said or "KeyboardInterrupt" in done.said


def test_a_part_without_tests_has_passed(script: ModuleType, tmp_path: Path) -> None:
    assert script.run("none", [str(tmp_path)], ["-q", "-p", "no:cacheprovider"]).passed
