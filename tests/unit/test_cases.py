"""docs/cases.md has every case, and names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cases.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \| (.+) \|$", re.MULTILINE)
SOURCE = re.compile(r"[\w-]+/[\w.-]+#\d+")
CASES = [
    *(1, 2, 4, 6, 8, 9, 11, 13, 14, 15, 17, 19, 20, 22, 24, 26, 28, 29, 31, 32),
    *(34, 35, 36, 37, 38, 39, 41, 42, 43, 44, 46, 47, 48, 50, 52, 53, 55, 56, 58, 60, 61, 63, 64),
]


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 40
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        functions = {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, f"{path} has no {name}"


def test_every_case_is_listed_once_with_its_source() -> None:
    rows = ROW.findall(PAGE)
    assert [int(number) for number, _, _ in rows] == CASES
    for number, source, _ in rows:
        assert SOURCE.search(source), number


def test_every_case_has_a_test_or_says_why_not() -> None:
    for number, _, kept in ROW.findall(PAGE):
        assert NAMED.search(kept) or "not yet" in kept, number


def test_what_is_missing_is_said_at_the_top() -> None:
    (said,) = re.findall(r"^Not covered yet: ([\d, ]+)\.", PAGE, re.MULTILINE)
    without = [number for number, _, kept in ROW.findall(PAGE) if not NAMED.search(kept)]
    assert said.split(", ") == without
