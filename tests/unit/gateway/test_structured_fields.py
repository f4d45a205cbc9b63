"""What a request says about the look of its answer, as a grammar."""

import json

import pytest
from pydantic import ValidationError

from outrider.core.errors import InvalidRequestError
from outrider.core.params import Grammar, GrammarKind
from outrider.gateway.openai.errors import from_validation
from outrider.gateway.openai.requests import ChatRequest, CompletionRequest

SCHEMA = {"type": "object", "properties": {"b": {"const": "é"}, "a": {"type": "integer"}}}
AS_SCHEMA = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA, ensure_ascii=False))
OBJECT = Grammar(GrammarKind.JSON_OBJECT)
NAMED = {"name": "answer", "schema": SCHEMA, "strict": True}


def parse(api, fields):
    needed = {"messages": [{"role": "user", "content": "x"}]} if api is ChatRequest else {"prompt": "x"}
    return api.model_validate_json(json.dumps(needed | fields))


def refusal(api, fields):
    try:
        request = parse(api, fields)
        request.check()
        request.generations()
    except ValidationError as error:
        return from_validation(error)
    except InvalidRequestError as error:
        return error
    raise AssertionError("not refused")


apis = pytest.mark.parametrize("api", [ChatRequest, CompletionRequest])


@apis
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": None, "guided_json": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, AS_SCHEMA),
        ({"response_format": {"type": "text"}, "guided_json": SCHEMA}, AS_SCHEMA),
        ({"guided_json": SCHEMA}, AS_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, AS_SCHEMA),
        ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"guided_choice": ["yes", "né"]}, Grammar(GrammarKind.CHOICE, '["yes", "né"]')),
        ({"guided_grammar": 'root ::= "a"'}, Grammar(GrammarKind.GRAMMAR, 'root ::= "a"')),
        ({"structured_outputs": {"json": SCHEMA}}, AS_SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, AS_SCHEMA),
        (
            {"structured_outputs": {"regex": "a+", "disable_fallback": False}},
            Grammar(GrammarKind.REGEX, "a+"),
        ),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar(GrammarKind.CHOICE, '["a"]')),
        ({"structured_outputs": {"grammar": "start: x"}}, Grammar(GrammarKind.GRAMMAR, "start: x")),
        ({"structured_outputs": {"json_object": True}}, OBJECT),
    ],
)
def test_every_way_to_ask(api, fields, grammar):
    (request,) = parse(api, fields).generations()
    assert request.sampling.edits.grammar == grammar


@apis
def test_errors_of_the_grammar_are_about_the_field_that_asked(api):
    assert parse(api, {}).fields == {}
    assert parse(api, {"guided_regex": "("}).fields == {"grammar": "guided_regex"}
    asked = {"response_format": {"type": "json_object"}}
    assert parse(api, asked).fields == {"grammar": "response_format"}


@apis
@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "'xml' is not supported"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structural_tag"),
        ({"response_format": "json"}, "response_format", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs a json_schema"),
        ({"response_format": {"type": "text", "json_schema": NAMED}}, "response_format.json_schema", ""),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.name",
            "required",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": [1]}}},
            "response_format.json_schema.schema",
            "",
        ),
        ({"guided_json": [1]}, "guided_json", "an object"),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_json": '{"not":' * 900 + "{}" + "}" * 900}, "guided_json", "nested"),
        ({"guided_json": '{"not":' * 9000}, "guided_json", "nested"),
        ({"guided_regex": 1}, "guided_regex", "string"),
        ({"guided_regex": ""}, "guided_regex", ""),
        ({"guided_choice": []}, "guided_choice", ""),
        ({"guided_choice": [1]}, "guided_choice[0]", "string"),
        ({"guided_grammar": ["a"]}, "guided_grammar", "string"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
        ({"structured_outputs": {}}, "structured_outputs", "must have one of"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml", ""),
        ({"structured_outputs": {"json": 1}}, "structured_outputs.json", "an object"),
        (
            {"structured_outputs": {"structural_tag": "a"}},
            "structured_outputs.structural_tag",
            "not supported",
        ),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "not supported",
        ),
        ({"guided_regex": "a", "guided_json": SCHEMA}, "guided_regex", "only one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "only one"),
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice", "only one"),
    ],
)
def test_what_is_wrong_is_named(api, fields, param, text):
    error = refusal(api, fields)
    assert error.field == param
    assert text in str(error)
