"""`outrider.v1.Generation` through Ray Serve's gRPC proxy, with a bare stub and with our client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio

from outrider.client import AsyncClient, Client
from outrider.core.errors import InvalidRequestError, ModelNotFoundError, SessionNotFoundError
from outrider.wire.services import GENERATION
from outrider.wire.v1 import common_pb2
from outrider.wire.v1 import generation_pb2 as pb
from tests.processes import parse_metrics, total
from tests.serve_cluster import ServeApp
from tests.stack import Stack
from tests.traffic import Generated, ask, connected, generate, take

NEVER = "0" * 32
TOKENS = 300


@pytest.fixture
async def pair(tiny: Stack, shared_app: ServeApp) -> AsyncIterator[tuple[Any, Any]]:
    """Stubs for the local gateway and for Serve's proxy, over the same models."""
    async with AsyncExitStack() as stack:
        addresses = (tiny.grpc, shared_app.cluster.grpc)
        yield tuple([await stack.enter_async_context(connected(address)) for address in addresses])


async def ended(call: Any) -> tuple[grpc.StatusCode, str | None, dict[str, str]]:
    """How a call that fails ends: code, details, trailing metadata of ours."""
    with pytest.raises(aio.AioRpcError) as failed:
        if isinstance(call, aio.UnaryStreamCall):
            assert [message async for message in call] == []
        else:
            await call
    error = failed.value
    ours = {name: text for name, text in error.trailing_metadata() or () if name.startswith("outrider-")}
    return error.code(), error.details(), ours


async def test_the_same_tokens_as_locally(pair: tuple[Any, Any]) -> None:
    request = ask(max_tokens=40, temperature=0.8, seed=9, drafter="twin")
    local, served = [await generate(stub, request) for stub in pair]
    assert (served.token_ids, served.text) == (local.token_ids, local.text)
    assert served.stats.draft_tokens > 0
    models = [(await stub.ListModels(pb.ListModelsRequest())).models[0].model_name for stub in pair]
    assert models == ["tiny", "tiny"]


async def test_streams_fail_with_the_codes_and_details_of_a_local_gateway(pair: tuple[Any, Any]) -> None:
    wrong: dict[str, Any] = {
        "a field out of bounds": lambda stub: stub.Generate(ask(temperature=-1)),
        "no such model": lambda stub: stub.Generate(pb.GenerateRequest(model="other", prompt="x")),
        "nothing to go on with": lambda stub: stub.Resume(pb.ResumeRequest(generation_id=NEVER)),
        "no id": lambda stub: stub.Resume(pb.ResumeRequest(generation_id="?")),
    }
    for what, call in wrong.items():
        local, served = [await ended(call(stub)) for stub in pair]
        assert served[:2] == local[:2], what
        assert served[2] == {}, (
            "Serve passes trailing metadata of failed streams on: say so in docs/rayserve.md"
        )


async def test_requests_that_cannot_be_read(tiny: Stack, shared_app: ServeApp) -> None:
    for method, data, code in (
        ("Generate", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ("Cancel", b"\x0a\x02\xff\xfe", grpc.StatusCode.INVALID_ARGUMENT),
        ("Cancel", b"\x0a" + bytes(5 * 1024 * 1024), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ):
        seen = []
        for address in (tiny.grpc, shared_app.cluster.grpc):
            async with aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
                if method == "Generate":
                    seen.append(await ended(channel.unary_stream(f"/{GENERATION}/{method}")(data)))
                else:
                    seen.append(await ended(channel.unary_unary(f"/{GENERATION}/{method}")(data)))
        local, served = seen
        assert (served[0], code) == (code, local[0])
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED or served[1] == local[1]
        if method == "Cancel" and code is grpc.StatusCode.INVALID_ARGUMENT:
            assert served[2] == local[2] == {"outrider-error-label": "invalid"}, "of one answer it arrives"


async def test_a_client_that_cancels_parks_the_generation(
    pair: tuple[Any, Any], shared_app: ServeApp
) -> None:
    local, served = pair
    request = ask("Cancelled by its client", max_tokens=TOKENS, temperature=0.8, seed=4)
    seen = Generated()
    call = served.Generate(request, timeout=60)
    async for message in call:
        take(seen, message)
        if len(seen.token_ids) > 20:
            call.cancel()
            break
    seen.finished = None
    async for message in served.Resume(
        pb.ResumeRequest(generation_id=seen.generation_id, from_token=len(seen.token_ids)), timeout=60
    ):
        take(seen, message)
    assert seen.token_ids == (await generate(local, request)).token_ids


async def test_a_generation_is_ended_by_its_id_at_whichever_gateway_it_runs(
    pair: tuple[Any, Any], tiny_app: ServeApp
) -> None:
    _, served = pair
    tiny_app.scale(gateway=2)
    assert not (await served.Cancel(pb.CancelRequest(generation_id=NEVER))).found
    for number in range(4):  # of so many some are asked for at the other gateway
        seen, found = Generated(), []
        async for message in served.Generate(
            ask("Ended by its id", seed=number, max_tokens=1500), timeout=60
        ):
            take(seen, message)
            if seen.deltas == 2 and not found:
                cancelled = await served.Cancel(pb.CancelRequest(generation_id=seen.generation_id))
                found.append(cancelled.found)
        assert found == [True]
        assert len(seen.token_ids) < 1500
        assert seen.finished.reason == common_pb2.FINISH_REASON_CANCELLED


@pytest.fixture(scope="module")
def blocking(shared_app: ServeApp) -> Iterator[Client]:
    with Client(shared_app.cluster.grpc) as client:
        yield client


async def test_our_client_understands_what_serve_leaves_of_errors(
    shared_app: ServeApp, blocking: Client
) -> None:
    async with AsyncClient(shared_app.cluster.grpc) as client:
        result = await client.generate("The quick brown fox", max_tokens=16, seed=2)
        again = await asyncio.to_thread(blocking.generate, "The quick brown fox", max_tokens=16, seed=2)
        assert result.token_ids == again.token_ids
        with pytest.raises(InvalidRequestError, match="temperature"):
            await client.generate("fox", temperature=-1)
        with pytest.raises(ModelNotFoundError, match="no model 'other'"):
            await client.generate("fox", model="other")
        with pytest.raises(SessionNotFoundError, match="is not in the store"):
            await anext(client.resume(NEVER))
        assert [model.model_name for model in await client.models()] == ["tiny"]
        assert not await client.cancel(NEVER)


async def test_calls_are_counted_as_locally(pair: tuple[Any, Any], tiny_app: ServeApp) -> None:
    async def counted(outcome: str) -> float:
        async with httpx.AsyncClient(base_url=tiny_app.cluster.http, trust_env=False) as client:
            page = parse_metrics((await client.get("/metrics")).text)
        return total(page, "outrider_requests_total", route=f"{GENERATION}/Generate", outcome=outcome)

    before = [await counted("ok"), await counted("invalid")]
    await generate(pair[1], ask(max_tokens=2))
    await ended(pair[1].Generate(ask(temperature=-1)))
    assert [await counted("ok"), await counted("invalid")] == [before[0] + 1, before[1] + 1]
