"""Tools of a request: what is asked for, what a template sees, and what forces a call."""

import json

import pytest

from outrider.gateway.openai.requests import ChatRequest
from outrider.gateway.tool_calls import FirstCallOnly, HermesReader, NamedReader, RequiredReader, ToolFormat
from tests.unit.gateway.test_structured_fields import parse, refusal

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "é", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
BY_NAME = {"type": "function", "function": {"name": "weather"}}


def chat(**fields):
    return parse(ChatRequest, fields)


def schema_of(request):
    (generation,) = request.generations()
    grammar = generation.sampling.edits.grammar
    if grammar is None:
        return None
    schema = json.loads(grammar.text)
    assert not schema.pop("x-guidance")["whitespace_flexible"]
    return schema


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "none"),
        ({"tools": []}, "none"),
        ({"tools": None, "tool_choice": "auto"}, "none"),
        ({"tool_choice": "none"}, "none"),
        ({"tools": TOOLS}, "auto"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "auto"),
        ({"tools": TOOLS, "tool_choice": "none"}, "none"),
        ({"tools": TOOLS, "tool_choice": "required"}, "required"),
        ({"tools": TOOLS, "tool_choice": BY_NAME}, "named"),
    ],
)
def test_what_is_asked_for(fields, mode):
    request = chat(**fields)
    assert request.tool_plan().mode == mode
    (generation,) = request.generations()
    assert generation.input.reads_calls == (mode == "auto")
    assert (generation.sampling.edits.grammar is not None) == (mode in ("required", "named"))


def test_how_an_answer_is_read():
    readers = {"auto": HermesReader, "required": RequiredReader, BY_NAME["function"]["name"]: NamedReader}
    for choice, kind in readers.items():
        asked = BY_NAME if kind is NamedReader else choice
        plan = chat(tools=TOOLS, tool_choice=asked).tool_plan()
        assert isinstance(plan.reader(ToolFormat.HERMES), kind)
        plan = chat(tools=TOOLS, tool_choice=asked, parallel_tool_calls=False).tool_plan()
        assert isinstance(plan.reader(ToolFormat.HERMES), FirstCallOnly)
    assert chat(tools=TOOLS, tool_choice="none").tool_plan().reader(ToolFormat.HERMES) is None


def test_a_template_sees_what_the_client_sent_but_for_strict():
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True, "x-note": 1}}
    (generation,) = chat(tools=[strict, NOW]).generations()
    shown = {"type": "function", "function": WEATHER["function"] | {"x-note": 1}}
    assert generation.input.tools == (shown, NOW)
    assert list(generation.input.tools[0]["function"])[:3] == ["name", "description", "parameters"]


def test_a_named_call_is_held_to_its_parameters():
    assert schema_of(chat(tools=TOOLS, tool_choice=BY_NAME)) == CITY
    now = {"type": "function", "function": {"name": "now"}}
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    assert schema_of(chat(tools=TOOLS, tool_choice=now)) == nothing
    assert chat(tools=TOOLS, tool_choice=now).fields == {"grammar": "tools"}


def test_required_calls_are_a_list_of_any_of_the_tools():
    schema = schema_of(chat(tools=TOOLS, tool_choice="required"))
    assert (schema["type"], schema["minItems"], "maxItems" in schema) == ("array", 1, False)
    names = [call["properties"]["name"]["const"] for call in schema["items"]["anyOf"]]
    assert names == ["weather", "now"]
    assert schema["$defs"]["tool_0"] == CITY
    alone = schema_of(chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
    assert alone["maxItems"] == 1


def test_references_go_on_to_hold_in_a_list_of_calls():
    tree = {
        "properties": {
            "root": {"$ref": "#/$defs/node"},
            "self": {"$ref": "#"},
            "elsewhere": {"$ref": "https://example.org/schema"},
            "$ref": {"type": "string"},
            "enum": {"$ref": "#/$defs/node"},
            "data": {"const": {"$ref": "#/$defs/node"}},
        },
        "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    }
    tool = {"type": "function", "function": {"name": "walk", "parameters": tree}}
    moved = schema_of(chat(tools=[NOW, tool], tool_choice="required"))["$defs"]["tool_1"]
    assert moved["type"] == "object"
    assert moved["$defs"]["node"]["items"] == {"$ref": "#/$defs/tool_1/$defs/node"}
    assert moved["properties"] == {
        "root": {"$ref": "#/$defs/tool_1/$defs/node"},
        "self": {"$ref": "#/$defs/tool_1"},
        "elsewhere": {"$ref": "https://example.org/schema"},
        "$ref": {"type": "string"},
        "enum": {"$ref": "#/$defs/tool_1/$defs/node"},
        "data": {"const": {"$ref": "#/$defs/node"}},
    }


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"tools": {}}, "tools", "array"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "'function'"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", ""),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", ""),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
            "",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
            '"object"',
        ),
        ({"tools": [NOW, WEATHER, NOW]}, "tools[2].function.name", "another tool"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", '"required"'),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", '"required"'),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {}}}, "tool_choice", ""),
        ({"tools": [NOW], "tool_choice": BY_NAME}, "tool_choice", "'weather'"),
        ({"tool_choice": BY_NAME}, "tool_choice", "not among the tools"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format", "combined"),
        ({"tools": TOOLS, "tool_choice": BY_NAME, "guided_regex": "a"}, "guided_regex", "combined"),
        ({"functions": [{"name": "a"}]}, "functions", "not supported"),
        ({"function_call": {"name": "a"}}, "function_call", "not supported"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", ""),
    ],
)
def test_what_is_wrong_is_named(fields, param, text):
    error = refusal(ChatRequest, fields)
    assert error.field == param
    assert text in str(error)


def test_without_tools_to_call_a_structure_is_fine():
    asked = chat(tools=TOOLS, tool_choice="none", guided_regex="a").generations()
    assert asked[0].sampling.edits.grammar is not None
