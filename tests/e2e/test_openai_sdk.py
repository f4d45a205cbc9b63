"""The OpenAI SDK, which nobody here wrote, talks to a real stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from tests.stack import Stack

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me of the quick brown fox."}]


@pytest.fixture
def client(tiny: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny.http}/v1", api_key="unused", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, **more: Any) -> Any:
    request = {"model": "tiny", "messages": MESSAGES, "max_tokens": 48, "seed": 5, "temperature": 1.0}
    return client.chat.completions.create(**(request | more))


def test_a_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(chunks[-1].usage, count) == getattr(whole.usage, count)
    assert whole.usage.completion_tokens <= 48
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_speculation_changes_no_text(client: openai.OpenAI) -> None:
    answers = [
        chat(client, extra_body={"speculation": speculation, "return_token_ids": True})
        for speculation in ({"enabled": False}, {"drafter": "twin"}, {"drafter": "lookup"})
    ]
    texts = {answer.choices[0].message.content for answer in answers}
    ids = {tuple(answer.choices[0].token_ids) for answer in answers}
    assert len(texts) == len(ids) == 1


@pytest.mark.parametrize("drafter", ["twin", None])
def test_a_stop_string_cuts_text_and_tokens(client: openai.OpenAI, drafter: str | None) -> None:
    speculation = {"drafter": drafter} if drafter else {"enabled": False}
    body = {"speculation": speculation, "return_token_ids": True, "ignore_eos": True}
    text = chat(client, extra_body=body).choices[0].message.content
    stop = text[10:13]
    cut = chat(client, stop=[stop], extra_body=body)
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens == len(cut.choices[0].token_ids)


def test_completions_and_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    answer = client.completions.create(model="tiny", prompt="def add(first", max_tokens=8, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason in ("length", "stop")


def test_errors_are_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        chat(client, model="another")
    with pytest.raises(openai.BadRequestError):
        chat(client, messages=[{"role": "user", "content": "fox " * 4000}])
    assert chat(client).choices[0].message.content is not None


async def test_async_choices_with_logprobs_are_the_same_streamed(tiny: Stack) -> None:
    request: dict[str, Any] = {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 12,
        "seed": 5,
        "temperature": 1.0,
        "n": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "frequency_penalty": 0.5,
        "logit_bias": {"70": -100},
    }
    async with openai.AsyncOpenAI(base_url=f"{tiny.http}/v1", api_key="unused", max_retries=0) as client:
        whole = await client.chat.completions.create(**request)
        stream = await client.chat.completions.create(**request, stream=True)
        told: dict[int, list[Any]] = {0: [], 1: [], 2: []}
        async for chunk in stream:
            for part in chunk.choices:
                told[part.index] += (part.logprobs and part.logprobs.content) or []
    assert len({choice.message.content for choice in whole.choices}) == 3
    for choice in whole.choices:
        assert choice.logprobs is not None and choice.logprobs.content == told[choice.index]
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_structured_output_is_parsed(client: openai.OpenAI) -> None:
    class Answer(pydantic.BaseModel):
        fast: bool
        legs: int = pydantic.Field(ge=0, le=9)

    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, seed=5, max_tokens=60, response_format=Answer
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)
