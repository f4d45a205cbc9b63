"""Calls that nothing marks."""

import json

import pytest
from hypothesis import given

from outrider.gateway.tool_calls import Llama3Reader
from tests.unit.gateway.tool_calls.reading import check_any_split, cuts, read, texts

ONE = '{"name": "f", "parameters": {"a": 1}}'
F = ("f", '{"a": 1}')


def reader():
    return Llama3Reader({"f"})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        ("just text", "just text", []),
        (f"so: {ONE}", f"so: {ONE}", []),
        (ONE, "", [F]),
        (f"\n<|python_tag|>{ONE}\n", "", [F]),
        (f"{ONE}; {ONE}", "", [F, F]),
        ('{"type": "function", "name": "f", "parameters": {"a": 1}}', "", [F]),
        ('{"name": "Alice", "parameters": {}}', '{"name": "Alice", "parameters": {}}', []),
        (f"{ONE} is a call", f"{ONE} is a call", []),
        ('{"name": "f", "para', '{"name": "f", "para', []),
        ("<|python_tag|>print()", "<|python_tag|>print()", []),
        ("<|python", "<|python", []),
    ],
)
def test_what_is_a_call_and_what_is_text(text, content, calls):
    assert read(reader(), [text]) == (content, calls)
    assert read(reader(), text) == (content, calls)


def test_plain_text_comes_at_once():
    waiting = reader()
    assert waiting.push(" ") == []
    assert waiting.push("a") == [" a"]
    assert waiting.push("b") == ["b"]


@given(texts("<|python_tag|>", ONE, '{"name": "f"}', '{"name": "g"}', ";"), cuts)
def test_any_split_reads_the_same(text, places):
    content, calls = check_any_split(reader, text, places)
    for name, arguments in calls:
        assert name == "f"
        assert isinstance(json.loads(arguments), dict)
    assert content == ("" if calls else text)
