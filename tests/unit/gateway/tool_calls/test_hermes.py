"""Calls in `<tool_call>` marks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.gateway.tool_calls import FirstCallOnly, HermesReader
from tests.unit.gateway.tool_calls.reading import check_any_split, cuts, read, texts

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PARIS = ("weather", '{"city": "Paris"}')
HARD = json.dumps(
    {"name": "f", "arguments": {"a": 'say "</tool_call>" \\', "b": [1.5, None, {"é": "日本 \ud83d\ude00"}]}}
)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        ("  just text \n", "  just text \n", []),
        (CALL, "", [PARIS]),
        (f"I look.\n\n{CALL}\n", "I look.", [PARIS]),
        (f"{CALL}\n{CALL}", "", [PARIS, PARIS]),
        (f"a {CALL} b {CALL} c", "a b c", [PARIS, PARIS]),
        (CALL.removesuffix("</tool_call>"), "", [PARIS]),
        ('<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
        ('<tool_call>{"name": "now", "parameters": {}}</tool_call>', "", [("now", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', "", [("f", '{"a": "x\\ny"}')]),
        ("if a <tool> b", "if a <tool> b", []),
        ("a <tool_", "a <tool_", []),
    ],
)
def test_what_is_a_call_and_what_is_text(text, content, calls):
    assert read(HermesReader(), [text]) == (content, calls)
    assert read(HermesReader(), text) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>soon</tool_call>",
        "<tool_call>{'name': 'f'}</tool_call> and on",
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>["f"]</tool_call>',
        '  <tool_call>{"name": "f", "argum',
        '<tool_call>{"name": "f", "arguments": {"a": "never closed}}</tool_call>',
        "<tool_call>" + '{"arguments":' * 3000 + "1" + "}" * 3000 + "</tool_call>",
        "<tool_call>" + "1" * 5000 + "</tool_call>",
    ],
)
def test_a_malformed_call_is_delivered_as_it_stands(text):
    assert read(HermesReader(), [text]) == (text, [])


def test_a_malformed_call_does_not_spoil_the_next_one():
    assert read(HermesReader(), ["<tool_call>{</tool_call>", CALL]) == ("<tool_call>{</tool_call>", [PARIS])


def test_an_end_mark_within_a_string_is_text_of_the_string():
    _, [(name, arguments)] = read(HermesReader(), [f"<tool_call>{HARD}</tool_call>"])
    assert {"name": name, "arguments": json.loads(arguments)} == json.loads(HARD)


def test_arguments_are_utf_8_even_if_a_string_is_not():
    call = '<tool_call>{"name": "f", "arguments": {"a": "\\ud800é"}}</tool_call>'
    _, [(_, arguments)] = read(HermesReader(), [call])
    assert arguments.encode()
    assert json.loads(arguments) == {"a": "\ud800é"}


def test_text_before_a_call_comes_at_once():
    reader = HermesReader()
    assert reader.push("I look. <") == ["I look."]
    assert reader.push("b") == [" <b"]


def test_without_parallel_calls_there_is_one():
    assert read(FirstCallOnly(HermesReader()), [f"a{CALL}{CALL}"]) == ("a", [PARIS])


@given(texts("<tool_call>", "</tool_call>", "<tool", CALL, HARD, '"name": "f"'), cuts)
def test_any_split_reads_the_same(text, places):
    content, calls = check_any_split(HermesReader, text, places)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)
    if not calls:
        assert content == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.lists(st.dictionaries(st.text(), json_values, max_size=3), min_size=1, max_size=3), st.booleans(), cuts
)
def test_any_arguments_come_through(all_arguments, ascii_only, places):
    text = "\n".join(
        f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments}, ensure_ascii=ascii_only)}</tool_call>"
        for arguments in all_arguments
    )
    content, calls = check_any_split(HermesReader, text, places)
    assert content == ""
    assert [json.loads(arguments) for _, arguments in calls] == all_arguments
