"""docs/cases.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cases.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ROW = re.compile(r"^\| (\d+) \|.*\|.*\| (.+) \|$", re.MULTILINE)


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 40
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        functions = {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, f"{path} has no {name}"


def test_every_case_has_a_test_or_says_why_not() -> None:
    rows = ROW.findall(PAGE)
    numbers = [int(number) for number, _ in rows]
    assert numbers == sorted(set(numbers))
    for number, kept in rows:
        assert NAMED.search(kept) or "not yet" in kept, number
