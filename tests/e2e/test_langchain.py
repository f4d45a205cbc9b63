"""LangChain's OpenAI client, which nobody here wrote and which reads more of each answer than the SDK."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from tests.stack import Stack

QUESTION = [SystemMessage("You are brief."), HumanMessage("Tell me of the quick brown fox.")]


def model(stack: Stack, **more: Any) -> ChatOpenAI:
    settings = {"temperature": 1.0, "max_tokens": 32, "seed": 5, "max_retries": 0, "timeout": 60}
    return ChatOpenAI(model="tiny", base_url=f"{stack.http}/v1", api_key="unused", **(settings | more))  # type: ignore[arg-type]


def test_invoke_and_stream_say_the_same(tiny: Stack) -> None:
    chat = model(tiny, stream_usage=True)
    whole = chat.invoke(QUESTION)
    assert isinstance(whole, AIMessage) and whole.content
    assert whole.response_metadata["finish_reason"] in ("stop", "length")
    assert whole.usage_metadata is not None and 0 < whole.usage_metadata["output_tokens"] <= 32
    chunks = list(chat.stream(QUESTION))
    assert len(chunks) > 2
    added = chunks[0]
    for chunk in chunks[1:]:
        added = added + chunk
    assert added.content == whole.content
    assert added.usage_metadata is not None
    assert added.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


async def test_async_batch_and_stream(tiny: Stack) -> None:
    chat = model(tiny)
    one, other = await chat.abatch([QUESTION, QUESTION])
    streamed = [chunk.content async for chunk in chat.astream(QUESTION)]
    assert one.content == other.content == "".join(str(text) for text in streamed)


def test_speculation_is_an_extra_body(tiny: Stack) -> None:
    answers = [
        model(tiny, extra_body={"speculation": speculation}).invoke(QUESTION).content
        for speculation in ({"enabled": False}, {"drafter": "twin"}, {"drafter": "lookup"})
    ]
    assert len(set(map(str, answers))) == 1


def test_completions(tiny: Stack) -> None:
    completion = OpenAI(
        model="tiny",
        base_url=f"{tiny.http}/v1",
        api_key="unused",
        temperature=0,
        max_tokens=12,
        max_retries=0,
    )  # type: ignore[call-arg]
    text = completion.invoke("def add(first")
    assert text == "".join(completion.stream("def add(first"))


def test_logprobs(tiny: Stack) -> None:
    answer = model(tiny, logprobs=True, top_logprobs=2).invoke(QUESTION)
    told = answer.response_metadata["logprobs"]["content"]
    assert answer.usage_metadata is not None and len(told) == answer.usage_metadata["output_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in told)


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_structured_output(tiny: Stack, method: str) -> None:
    schema = {
        "title": "person",
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    }
    # A random model says anything; what it says must fit. In json_mode it may go on to the last token.
    chat = model(tiny, max_tokens=200)
    structured = chat.with_structured_output(schema, method=method, include_raw=True)  # type: ignore[arg-type]
    answer: Any = structured.invoke(QUESTION)
    if method == "json_schema":
        assert set(answer["parsed"]) == {"name", "old"}
        assert isinstance(answer["parsed"]["old"], bool)
    elif answer["raw"].response_metadata["finish_reason"] == "stop":
        assert isinstance(answer["parsed"], dict)


def test_tools(tiny: Stack) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "maxLength": 8}},
                "required": ["place"],
                "additionalProperties": False,
            },
        },
    }
    chat = model(tiny, max_tokens=200).bind_tools([tool], tool_choice="weather")
    answer = chat.invoke(QUESTION)
    (call,) = answer.tool_calls
    assert call["name"] == "weather"
    assert set(call["args"]) == {"place"}
    added: Any = None
    for chunk in chat.stream(QUESTION):
        added = chunk if added is None else added + chunk
    assert [(call["name"], call["args"]) for call in added.tool_calls] == [(call["name"], call["args"])]


def test_errors_are_openais(tiny: Stack) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="temperature"):
        model(tiny, temperature=-1.0).invoke(QUESTION)
    with pytest.raises(openai.NotFoundError):
        ChatOpenAI(model="another", base_url=f"{tiny.http}/v1", api_key="unused", max_retries=0).invoke(
            QUESTION
        )  # type: ignore[call-arg]
