"""Answers that a grammar holds to calls."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.gateway.tool_calls import CallPiece, FirstCallOnly, NamedReader, RequiredReader
from tests.unit.gateway.tool_calls.reading import check_any_split, cuts, read, texts
from tests.unit.gateway.tool_calls.test_hermes import json_values

ONE = '{"name": "f", "parameters": {"a": "}]\\""}}'
F = ("f", '{"a": "}]\\""}')


def test_a_named_call_is_all_of_the_answer():
    assert read(NamedReader("f"), ['{"a"', ": 1}"]) == ("", [("f", '{"a": 1}')])
    assert read(NamedReader("f"), []) == ("", [("f", "")])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"[{ONE}]", "", [F]),
        (f"[\n {ONE} ,\n {ONE} ]\n", "", [F, F]),
        ('[{"name":"f\\u0021","parameters":{}}]', "", [("f!", "{}")]),
        ('[{"name": "f", "parameters": {"a": [{', "", [("f", '{"a": [{')]),
        (f'[{ONE}, {{"name": "f', '{"name": "f', [F]),
        ("[", "", []),
        ("no calls at all", "no calls at all", []),
    ],
)
def test_a_list_of_calls(text, content, calls):
    assert read(RequiredReader(), [text]) == (content, calls)
    assert read(RequiredReader(), text) == (content, calls)


def test_arguments_come_as_they_are_written():
    reader = RequiredReader()
    assert reader.push('[{"name": "f", "parameters": ') == []
    assert reader.push('{"a"') == [CallPiece(0, "f", "{"), CallPiece(0, "", '"a"')]
    assert reader.push(": 1") == [CallPiece(0, "", ": 1")]


def test_without_parallel_calls_there_is_one():
    assert read(FirstCallOnly(RequiredReader()), [f"[{ONE},{ONE}]"]) == ("", [F])


@given(texts('{"name": "f", "parameters": {', ONE, '"name"', "}}"), cuts)
def test_any_split_reads_the_same(text, places):
    check_any_split(RequiredReader, text, places)


@given(
    st.lists(st.dictionaries(st.text(), json_values, max_size=3), min_size=1, max_size=3),
    st.sampled_from([None, 2]),
    cuts,
)
def test_any_arguments_come_through(all_arguments, indent, places):
    calls = [{"name": "f", "parameters": arguments} for arguments in all_arguments]
    content, read_calls = check_any_split(RequiredReader, json.dumps(calls, indent=indent), places)
    assert content == ""
    assert [json.loads(arguments) for _, arguments in read_calls] == all_arguments
