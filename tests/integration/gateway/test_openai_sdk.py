"""A client that nobody here wrote: the `openai` SDK, synchronous and not, streaming and not."""

import asyncio

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from outrider.core import errors
from tests.integration.gateway.conftest import ids_of

MESSAGES = [{"role": "user", "content": "hello"}]
TEXT = "the quick brown fox"


def check_against_types(model):
    """The SDK builds its objects without validation; this validates them, extensions aside."""
    type(model).model_validate(model.model_dump(exclude_unset=True), strict=False)


async def test_async_chat(stack):
    async with stack.sdk() as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, seed=5, max_tokens=50)
        assert isinstance(answer, ChatCompletion)
        check_against_types(answer)
        assert answer.choices[0].message.content == TEXT
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == len(ids_of(TEXT))
        assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0
        assert answer.model_extra["seed"] == 5


async def test_async_chat_stream(stack):
    async with stack.sdk() as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"top_k": 5, "speculation": {"stats": True}, "return_token_ids": True},
        )
        chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        assert isinstance(chunk, ChatCompletionChunk)
        check_against_types(chunk)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-2].model_extra["speculation_stats"]["drafter"] == "scripted"
    assert chunks[-1].usage.total_tokens > 0


async def test_async_stream_helper(stack):
    asked = {"model": "tiny", "messages": MESSAGES, "stop": " fox"}
    async with stack.sdk() as client, client.chat.completions.stream(**asked) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == "the quick brown"


async def test_sync_client(stack):
    def ask():
        with openai.OpenAI(base_url=f"{stack.http}/v1", api_key="none", max_retries=0) as client:
            whole = client.completions.create(model="tiny", prompt=["hello", "there"], max_tokens=50)
            chunks = list(client.completions.create(model="tiny", prompt="hello", max_tokens=50, stream=True))
            return whole, chunks, client.models.list(), client.models.retrieve("tiny")

    whole, chunks, models, model = await asyncio.to_thread(ask)
    check_against_types(whole)
    assert [choice.text for choice in whole.choices] == [TEXT, TEXT]
    assert all(isinstance(chunk, Completion) for chunk in chunks)
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert [entry.id for entry in models] == ["tiny"]
    assert model.owned_by == "outrider"


@pytest.mark.parametrize(
    ("error", "expected", "status"),
    [
        (errors.InvalidRequestError("no such drafter", field="drafter"), openai.BadRequestError, 400),
        (errors.SessionExistsError("twice"), openai.ConflictError, 409),
        (errors.OverloadedError("full"), openai.RateLimitError, 429),
        (errors.UnavailableError("draining"), openai.InternalServerError, 503),
        (errors.InternalError("broken"), openai.InternalServerError, 500),
    ],
)
async def test_errors_are_the_sdks_exceptions(stack, error, expected, status):
    stack.verifier.refuse = error
    async with stack.sdk() as client:
        with pytest.raises(expected) as caught:
            await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert caught.value.status_code == status
    assert str(error) in caught.value.message
    assert isinstance(caught.value.type, str)


async def test_an_unknown_model_is_not_found(stack):
    async with stack.sdk() as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="gpt-0", messages=MESSAGES)
    assert caught.value.code == "model_not_found"


async def test_an_error_in_mid_stream_is_raised(stack):
    stack.verifier.fail_after = (1, errors.InternalError("out of order"))
    async with stack.sdk() as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="out of order"):
            async for _ in stream:
                pass


async def test_closing_a_stream_frees_the_session(stack, hold):
    async with stack.sdk() as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        await anext(aiter(stream))
        await stream.close()
    (session,) = stack.verifier.sessions.values()
    await session.ended.wait()
    assert session.broken_off
