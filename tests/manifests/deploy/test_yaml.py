"""YAML of deploy/ is tidy: no key twice, no ambiguous indentation or truth values."""

from __future__ import annotations

from pathlib import Path

import pytest
from yamllint import linter
from yamllint.config import YamlLintConfig

ROOT = Path(__file__).parents[3]
FOLDERS = ("compose", "grafana", "otel", "prometheus")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / "deploy" / folder).rglob("*.yaml"))
HABITS = YamlLintConfig(
    """
    extends: default
    rules:
      braces: {max-spaces-inside: 1}
      comments: {min-spaces-from-content: 1}
      comments-indentation: disable  # what is commented out stands where it would stand
      document-start: disable
      line-length: {max: 220}  # one text of an alert is one line
    """
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_is_tidy(path: Path) -> None:
    found = linter.run(path.read_text("utf-8"), HABITS)
    assert [f"{one.line}: {one.desc}" for one in found] == []
