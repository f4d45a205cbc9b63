"""Generation.Resume: behind any delta, on any gateway, each token and its text once."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc import aio

from outrider.wire import channels, services
from outrider.wire.v1 import common_pb2
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.conftest import config_for, gateway_over, ids_of, say
from tests.integration.gateway.scripted_verifier import ScriptedVerifier, running

TEXT = "the quick brown fox — jumps over the lazy do"
CASES = {
    "plain": {},
    "log_probabilities": {"logprobs": common_pb2.LogprobParams(top=2, prompt_top=1)},
    "stop_string": {"stop": common_pb2.StopParams(stop=["lazy", "zzz"])},
    "stop_string_included": {"stop": common_pb2.StopParams(stop=["jum"], include_stop=True)},
    "held_back_to_the_end": {"stop": common_pb2.StopParams(stop=["lazy dog"])},
}


@dataclass
class Pair:
    """Two gateways over one verifier."""

    verifier: ScriptedVerifier
    first: Any
    second: Any


@pytest.fixture
async def pair(model_folder, make_verifier):
    verifier = make_verifier()
    sizes = itertools.cycle([3, 1, 4, 2])  # no two streams bring the tokens in the same rounds
    verifier.script = lambda _: say(TEXT, next(sizes))
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(running(verifier))
        stubs = []
        for _ in range(2):
            addresses, _, _ = await stack.enter_async_context(gateway_over(config_for(model_folder, address)))
            channel = await stack.enter_async_context(channels.open_channel(addresses["grpc"]))
            stubs.append(services.generation_client(channel))
        yield Pair(verifier, *stubs)


def told(events) -> dict[str, Any]:
    """What a client has of a generation."""
    deltas = [event.delta for event in events if event.HasField("delta")]
    finished = [event.finished for event in events if event.HasField("finished")]
    return {
        "text": "".join(delta.text for delta in deltas),
        "token_ids": [token_id for delta in deltas for token_id in delta.token_ids],
        "logprobs": [one for delta in deltas for one in delta.logprobs],
        "prompt": [one for event in events for one in event.prompt_logprobs.entries],
        "finished": [(one.reason, one.usage.prompt_tokens, one.usage.completion_tokens) for one in finished],
    }


@pytest.mark.parametrize("case", CASES)
async def test_behind_any_delta_it_is_the_undisturbed_generation(pair, case):
    request = pb.GenerateRequest(prompt="hello", **CASES[case])
    events = [event async for event in pair.first.Generate(request)]
    whole = told(events)
    assert len(whole["finished"]) == 1
    started = events[0].started
    ends = [i for i, event in enumerate(events) if event.HasField("delta") and event.delta.token_ids]
    for last in [0, *ends]:
        seen = events[: last + 1] if last else []
        position = sum(len(event.delta.token_ids) for event in seen)
        asked = pb.ResumeRequest(generation_id=started.generation_id, from_token=position)
        again = [event async for event in pair.second.Resume(asked)]
        assert again[0].started == started
        assert told(seen + again) == whole, f"behind {position} tokens"


async def error_of(call) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as caught:
        [event async for event in call]
    return caught.value


async def test_an_older_stream_ends_when_a_newer_one_takes_over(pair):
    release = asyncio.Event()

    async def pace(session, index):
        if index >= 2:
            await release.wait()

    pair.verifier.pace = pace
    older = pair.first.Generate(pb.GenerateRequest(prompt="hello"))
    events = aiter(older)
    started = (await anext(events)).started
    first = (await anext(events)).delta
    newer = pair.second.Resume(
        pb.ResumeRequest(generation_id=started.generation_id, from_token=len(first.token_ids))
    )
    again = aiter(newer)
    assert (await anext(again)).started == started
    release.set()
    rest = [event.delta async for event in again if event.HasField("delta")]
    assert [*first.token_ids, *(one for delta in rest for one in delta.token_ids)] == ids_of(TEXT)
    error = await error_of(events)
    assert error.code() is grpc.StatusCode.ABORTED
    assert "another client" in error.details()


async def test_what_cannot_be_resumed(pair):
    events = [event async for event in pair.first.Generate(pb.GenerateRequest(prompt="hello"))]
    known, tokens = events[0].started.generation_id, len(ids_of(TEXT))
    for asked, code in [
        (pb.ResumeRequest(generation_id="unknown"), grpc.StatusCode.NOT_FOUND),
        (pb.ResumeRequest(generation_id=""), grpc.StatusCode.INVALID_ARGUMENT),
        (pb.ResumeRequest(generation_id="a b"), grpc.StatusCode.INVALID_ARGUMENT),
        (pb.ResumeRequest(generation_id=known, from_token=tokens + 1), grpc.StatusCode.INVALID_ARGUMENT),
    ]:
        error = await error_of(pair.second.Resume(asked))
        assert error.code() is code, asked
    asked = pb.ResumeRequest(generation_id=known, from_token=tokens)
    rest = [event async for event in pair.second.Resume(asked)]
    assert [event.WhichOneof("event") for event in rest] == ["started", "finished"]


@pytest.mark.parametrize("comes", [True, False], ids=["replayed", "never_replayed"])
async def test_a_cancel_before_the_replay_has_come_to_the_client_takes_nothing_back(pair, comes):
    events = [event async for event in pair.first.Generate(pb.GenerateRequest(prompt="hello"))]
    session_id, had = events[0].started.generation_id, len(ids_of(TEXT)) - 3
    release, held = asyncio.Event(), asyncio.Event()

    async def pace(session, index):
        if index == 2:
            held.set()
            await release.wait()

    pair.verifier.pace = pace
    call = pair.second.Resume(pb.ResumeRequest(generation_id=session_id, from_token=had))
    seen = aiter(call)
    assert (await anext(seen)).started.generation_id == session_id
    await held.wait()
    assert (await pair.second.Cancel(pb.CancelRequest(generation_id=session_id))).found
    if comes:
        release.set()
    rest = told([event async for event in seen])
    ((reason, _, completion_tokens),) = rest["finished"]
    assert reason == common_pb2.FINISH_REASON_CANCELLED
    assert completion_tokens == had + len(rest["token_ids"])
    kept = [cancel.keep_tokens for cancel in pair.verifier.sessions[session_id].cancels]
    assert kept[0] == completion_tokens
    assert rest["token_ids"] == ids_of(TEXT)[had:completion_tokens]
