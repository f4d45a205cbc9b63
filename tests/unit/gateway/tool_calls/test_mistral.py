"""Calls after `[TOOL_CALLS]`."""

import json

import pytest
from hypothesis import given

from outrider.gateway.tool_calls import MistralReader
from tests.unit.gateway.tool_calls.reading import check_any_split, cuts, read, texts

ONE = '{"name": "f", "arguments": {"a": "[TOOL_CALLS]"}}'
F = ("f", '{"a": "[TOOL_CALLS]"}')


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just text [TOOL", "just text [TOOL", []),
        (f"[TOOL_CALLS][{ONE}]", "", [F]),
        (f"[TOOL_CALLS] [{ONE}, {ONE}]\n", "", [F, F]),
        (f"I look. [TOOL_CALLS]{ONE}", "I look.", [F]),
        ('[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g[ARGS]{}', "", [("f", '{"a": 1}'), ("g", "{}")]),
        ('[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
        (f"[TOOL_CALLS][{ONE}] so", " so", [F]),
        ("a [TOOL_CALLS]so", "a [TOOL_CALLS]so", []),
        (f"a [TOOL_CALLS][{ONE}, 1]", f"a [TOOL_CALLS][{ONE}, 1]", []),
        (f"[TOOL_CALLS][{ONE}", f"[TOOL_CALLS][{ONE}", []),
        ("[TOOL_CALLS]", "[TOOL_CALLS]", []),
        ("[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ],
)
def test_what_is_a_call_and_what_is_text(text, content, calls):
    assert read(MistralReader(), [text]) == (content, calls)
    assert read(MistralReader(), text) == (content, calls)


@given(texts("[TOOL_CALLS]", "[TOOL", ONE, f"[{ONE}]", "f{}", "g[ARGS]{}"), cuts)
def test_any_split_reads_the_same(text, places):
    content, calls = check_any_split(MistralReader, text, places)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)
    if not calls:
        assert content == text
