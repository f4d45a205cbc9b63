"""Messages and template options of a request, as a chat template reads them."""

import pytest

from outrider.gateway.openai.requests import ChatRequest
from tests.unit.gateway.test_structured_fields import parse, refusal

USER = {"role": "user", "content": "x"}


def call(arguments='{"a": 1}', **more):
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}} | more


def conversation(messages=(USER,), **fields):
    (generation,) = parse(ChatRequest, {"messages": list(messages), **fields}).generations()
    return generation.input


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (USER, USER),
        ({"role": "developer", "content": None}, {"role": "developer", "content": ""}),
        (USER | {"name": "Ann", "extra": 1}, USER | {"name": "Ann"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        (
            {"role": "tool", "content": "4", "tool_call_id": "1"},
            {"role": "tool", "content": "4", "tool_call_id": "1"},
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [call(), call("")], "refusal": None},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}},
                ],
            },
        ),
        (
            {"role": "assistant", "content": "a", "tool_calls": [], "reasoning": "so"},
            {"role": "assistant", "content": "a", "reasoning_content": "so", "thinking": "so"},
        ),
    ],
)
def test_messages_as_a_template_reads_them(given, read):
    assert conversation([given]).messages == (read,)


def test_options_of_the_template():
    plain = conversation()
    assert (plain.add_generation_prompt, plain.continue_final_message, plain.template) == (True, False, None)
    told = conversation(
        chat_template="{{ a }}", chat_template_kwargs={"a": [1]}, documents=[{"text": "t"}], tools=None
    )
    assert (told.template, told.template_kwargs, told.documents) == ("{{ a }}", {"a": [1]}, ({"text": "t"},))
    assert not conversation(add_generation_prompt=False).add_generation_prompt
    goes_on = conversation(continue_final_message=True)
    assert (goes_on.add_generation_prompt, goes_on.continue_final_message) == (False, True)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"messages": [USER | {"tool_calls": [call()]}]}, "messages[0].tool_calls", "role assistant"),
        ({"messages": [USER, {"role": "tool", "content": "4"}]}, "messages[1].tool_call_id", "needs it"),
        ({"messages": [USER | {"tool_call_id": "1"}]}, "messages[0].tool_call_id", "role tool"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [call(), call("[1]")]}]},
            "messages[0].tool_calls[1].function.arguments",
            "JSON of an object",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [call('{"a":' * 5000)]}]},
            "messages[0].tool_calls[0].function.arguments",
            "JSON of an object",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [call(type="custom")]}]},
            "messages[0].tool_calls[0].type",
            "'function'",
        ),
        ({"messages": [USER | {"function_call": {}}]}, "messages[0].function_call", "not supported"),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs.tools", "must not set tools"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs", ""),
        ({"documents": ["a"]}, "documents[0]", ""),
        ({"chat_template": "x" * 200_000}, "chat_template", ""),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
            "cannot both",
        ),
    ],
)
def test_what_is_wrong_is_named(fields, param, text):
    error = refusal(ChatRequest, {"messages": [USER], **fields})
    assert error.field == param
    assert text in str(error)
