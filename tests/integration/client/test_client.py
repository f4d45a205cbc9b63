"""outrider.client against a real gateway."""

import asyncio
import dataclasses

import pytest

from outrider.client import (
    Acceptance,
    AsyncClient,
    ChatTurn,
    FinishReason,
    GenerationDelta,
    GenerationFinished,
    GenerationStarted,
    Grammar,
    GrammarKind,
    Options,
)
from outrider.core import errors
from outrider.core.params import LogitEdits, LogprobParams, SamplingParams, SpeculationParams
from tests.integration.gateway.conftest import ids_of, say

TEXT = "the quick brown fox jumps over the lazy dog, the end."


async def test_a_whole_generation(client, stack):
    stack.verifier.script = lambda _: say(TEXT, 4)
    result = await client.generate("hello", seed=9, temperature=0)
    assert (result.text, result.token_ids) == (TEXT, ids_of(TEXT))
    assert (result.model, result.seed, result.reason) == ("tiny", 9, FinishReason.LENGTH)
    assert result.generation_id in stack.verifier.sessions
    assert result.usage.completion_tokens == len(result.token_ids)
    assert result.speculation.rounds == len(say(TEXT, 4))
    assert result.speculation.drafter == "scripted"
    assert result.tokens_per_round == len(result.token_ids) / result.speculation.rounds
    assert result.acceptance_rate == result.speculation.accepted_tokens / result.speculation.draft_tokens
    assert result.logprobs == result.prompt_logprobs == []


async def test_events_come_as_they_are(client, stack):
    events = [event async for event in client.stream("hello")]
    assert isinstance(events[0], GenerationStarted) and isinstance(events[-1], GenerationFinished)
    assert all(isinstance(event, GenerationDelta) for event in events[1:-1])
    assert len(events) > 3
    assert events[0].seed == next(iter(stack.verifier.sessions.values())).request.sampling.seed


async def test_prompts_of_every_kind(client, stack):
    await client.generate("hi")
    await client.generate([5, 6])
    await client.generate([{"role": "user", "content": "hi"}])
    await client.generate([ChatTurn("user", "hi")])
    text, ids, *chats = (session.request.prompt for session in stack.verifier.sessions.values())
    assert list(text) == ids_of("hi")
    assert ids == (5, 6)
    assert chats == [tuple(ids_of("<user>hi\n<assistant>"))] * 2


async def test_every_option_arrives(client, stack):
    options: Options = {
        "model": "tiny",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.75,
        "min_p": 0.25,
        "typical_p": 0.5,
        "seed": 2**64 - 1,
        "stop": "zzz",
        "stop_token_ids": [4],
        "ignore_eos": True,
        "include_stop": True,
        "min_tokens": 2,
        "grammar": Grammar(GrammarKind.REGEX, "[a-z ]*"),
        "allowed_token_ids": [1, 2],
        "bad_words": ["q"],
        "logit_bias": {7: -1.5, 3: 2},
        "repetition_penalty": 1.25,
        "frequency_penalty": -0.5,
        "presence_penalty": 0.5,
        "logprobs": 2,
        "prompt_logprobs": 0,
        "skip_special_tokens": False,
        "cache_salt": "ours",
        "speculation": True,
        "max_draft_tokens": 2,
        "drafter": "scripted",
        "acceptance": "block",
    }
    assert options.keys() == Options.__annotations__.keys()
    stack.verifier.script = lambda _: []
    await client.generate("hello", **options)
    (session,) = stack.verifier.sessions.values()
    asked = session.request
    assert dataclasses.replace(asked.sampling.edits, bad_words=()) == LogitEdits(
        grammar=Grammar(GrammarKind.REGEX, "[a-z ]*"),
        allowed_token_ids=(1, 2),
        min_tokens=2,
        logit_bias=((3, 2.0), (7, -1.5)),
        repetition_penalty=1.25,
        frequency_penalty=-0.5,
        presence_penalty=0.5,
    )
    assert asked.sampling.edits.bad_words[0] == tuple(ids_of("q"))
    assert dataclasses.replace(asked.sampling, edits=LogitEdits()) == SamplingParams(
        0.5, 3, 0.75, 0.25, 2**64 - 1, 0.5
    )
    assert asked.speculation == SpeculationParams(True, 2, "scripted", Acceptance.BLOCK)
    assert asked.logprobs == LogprobParams(2, 0)
    assert asked.cache_salt == "ours"
    assert (asked.stop.max_tokens, asked.stop.stop_token_ids, asked.stop.ignore_eos) == (7, {4}, True)


async def test_stop_strings(client, stack):
    stack.verifier.script = lambda _: say(TEXT, 4)
    for stop in ("lazy", ["zzz", "lazy"]):
        result = await client.generate("hello", stop=stop)
        assert result.text == "the quick brown fox jumps over the "
        assert result.reason is FinishReason.STOP
    assert (await client.generate("hello", stop="lazy", include_stop=True)).text.endswith("the lazy")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1}, "sampling.temperature"),
        ({"logit_bias": {1: 200}}, "sampling.edits.logit_bias"),
        ({"logit_bias": {10**6: 1}}, "logit_bias"),
        ({"frequency_penalty": 9}, "sampling.edits.frequency_penalty"),
        ({"grammar": Grammar(GrammarKind.JSON_SCHEMA, "{")}, "sampling.edits.grammar"),
        ({"logprobs": 21}, "logprobs.top"),
        ({"bad_words": [""]}, "bad_words"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
        ({"stop": [""]}, "stop.stop"),
        ({"max_tokens": 1000}, "max_tokens"),
    ],
)
async def test_what_the_gateway_refuses(client, stack, options, field):
    with pytest.raises(errors.InvalidRequestError) as caught:
        await client.generate("hello", **options)
    assert caught.value.field == field
    assert not stack.verifier.sessions


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([-1], {}),
        ([2**40], {}),
        ([], {}),
        ("\ud800", {}),
        ([{"role": "user"}], {}),
        ([{"role": "user", "content": 3}], {}),
        ("x", {"top_k": -1}),
        ("x", {"top_k": 0.5}),
        ("x", {"max_tokens": 2**32}),
        ("x", {"seed": -1}),
        ("x", {"temperature": "hot"}),
        ("x", {"acceptance": "hope"}),
        ("x", {"heat": 1}),
        ("x", {"stop": 3}),
        ("x", {"logit_bias": [1]}),
        ("x", {"grammar": "json"}),
    ],
)
async def test_what_no_message_can_hold(client, stack, prompt, options):
    with pytest.raises(errors.InvalidRequestError):
        await client.generate(prompt, **options)
    assert not stack.verifier.sessions


async def test_an_unknown_model(client):
    with pytest.raises(errors.ModelNotFoundError, match="no model 'other'"):
        await client.generate("hello", model="other")


async def test_a_full_verifier(client, stack):
    stack.verifier.refuse = errors.OverloadedError("full", retry_after_s=1.5)
    with pytest.raises(errors.OverloadedError, match="full") as caught:
        await client.generate("hello")
    assert caught.value.retry_after_s == 1.5


async def test_the_deadline(client, stack, hold):
    with pytest.raises(errors.DeadlineExceededError):
        await client.generate("hello", timeout_s=0.3)
    (session,) = stack.verifier.sessions.values()
    await session.ended.wait()


async def test_models(client):
    (model,) = await client.models()
    assert (model.model_name, model.context_length) == ("tiny", 256)


async def test_cancel(client, stack, hold):
    stream = client.stream("hello")
    started = await anext(stream)
    assert await client.cancel(started.generation_id)
    events = [event async for event in stream]
    assert events[-1].reason is FinishReason.CANCELLED
    assert not await client.cancel(started.generation_id)


async def test_a_closed_stream_ends_its_generation(client, stack, hold):
    stream = client.stream("hello")
    await anext(stream)
    stream.close()
    stream.close()
    (session,) = stack.verifier.sessions.values()
    await session.ended.wait()
    assert session.broken_off
    with pytest.raises(errors.RequestCancelledError):
        [event async for event in stream]


async def test_a_stream_that_is_closed_while_it_is_read(client, stack, hold):
    stream = client.stream("hello")
    await anext(stream)

    async def rest():
        return [event async for event in stream]

    reading = asyncio.create_task(rest())
    await stack.verifier.started.wait()
    stream.close()
    with pytest.raises(errors.RequestCancelledError):
        await reading


async def test_a_cancelled_task_ends_its_generation(stack, hold):
    async with AsyncClient(stack.grpc) as client:
        generating = asyncio.create_task(client.generate("hello"))
        await stack.verifier.started.wait()
        generating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await generating
        (session,) = stack.verifier.sessions.values()
        await session.ended.wait()
        assert session.broken_off


async def test_a_closed_client(face, stack):
    client = face(stack.grpc)
    await client.models()
    await client.close()
    for call in (client.models, lambda: client.generate("hello")):
        with pytest.raises(errors.UnavailableError):
            await call()


async def test_many_at_once(client, stack):
    results = await asyncio.gather(*(client.generate("hello", seed=seed) for seed in range(20)))
    assert [result.seed for result in results] == list(range(20))
    assert {result.text for result in results} == {"the quick brown fox"}
