"""A gateway or a client that goes away: the session waits in the store, and any gateway goes on with it."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc import aio

from outrider.core.errors import SessionNotFoundError
from outrider.wire.v1 import generation_pb2
from tests import sse
from tests.faults import kinds
from tests.idle import wait_until_idle
from tests.proxy import Proxy
from tests.stack import Service, Stack
from tests.traffic import Generated, connected, take

LONG = kinds.TOKENS


def addresses(pair: Stack, first: str) -> list[str]:
    """Of both gateways, gRPC; `first` is tried first."""
    return [service.reached for service in in_order(pair, first)]


def urls(pair: Stack, first: str) -> list[str]:
    """Of both gateways, HTTP."""
    return [service.http for service in in_order(pair, first)]


def in_order(pair: Stack, first: str) -> list[Service]:
    return sorted(pair.all("gateway"), key=lambda service: service.name != first)


async def test_streams_of_a_killed_gateway_are_resumed_at_another(
    pair: Stack, undisturbed: dict[str, Generated], store_link: Proxy
) -> None:
    gateway = pair["gateway-2"]
    text = await sse.persist(urls(pair, "gateway-1"), sse.body(max_tokens=LONG, temperature=1.0, seed=11))
    barrier = kinds.Barrier(len(kinds.KINDS) + 1, 6, gateway.restart)
    streams, events = await asyncio.gather(
        kinds.run_watched(addresses(pair, "gateway-2"), {kind: barrier.watch() for kind in kinds.KINDS}),
        sse.persist(
            urls(pair, "gateway-2"),
            sse.body(max_tokens=LONG, temperature=1.0, seed=11),
            on_event=kinds.counted(barrier.watch()),
        ),
    )
    assert barrier.struck
    assert all(got.resumes for got in streams.values())
    assert events.resumes
    kinds.check(streams, undisturbed)
    assert (events.token_ids, events.text) == (text.token_ids, text.text)
    await kinds.check_stored(f"redis://{store_link.target}/0", streams)


async def test_streams_of_a_gateway_that_stops_are_resumed_at_another(
    pair: Stack, undisturbed: dict[str, Generated]
) -> None:
    """Those that are not over when its grace has passed."""
    gateway = pair["gateway-2"]
    barrier = kinds.Barrier(len(kinds.KINDS), 2, gateway.terminate)
    watches = {kind: barrier.watch() for kind in kinds.KINDS}
    seen = await kinds.run_watched(addresses(pair, "gateway-2"), watches)
    try:
        assert not await asyncio.to_thread(gateway.finish)
    finally:
        gateway.start()
    assert barrier.struck
    kinds.check(seen, undisturbed)


async def test_a_client_that_goes_away_is_no_end(pair: Stack, undisturbed: dict[str, Generated]) -> None:
    """All that its session held is given back, and it goes on where the client comes back to."""
    first, second = addresses(pair, "gateway-1")
    seen = {kind: Generated() for kind in kinds.KINDS}
    await asyncio.gather(*(begin(first, kinds.request(kind), got, 5) for kind, got in seen.items()))
    await asyncio.to_thread(wait_until_idle, pair)
    assert not any(got.finished for got in seen.values())
    await asyncio.gather(*(go_on(second, got) for got in seen.values()))
    kinds.check(seen, undisturbed)


async def begin(address: str, request: generation_pb2.GenerateRequest, seen: Generated, deltas: int) -> None:
    """Read so much of a generation, then go away."""
    async with connected(address) as stub:
        call = stub.Generate(request, timeout=60)
        async for response in call:
            take(seen, response)
            if seen.deltas == deltas:
                call.cancel()
                return


async def go_on(address: str, seen: Generated) -> None:
    """Read the rest of a generation."""
    request = generation_pb2.ResumeRequest(generation_id=seen.generation_id, from_token=len(seen.token_ids))
    async with connected(address) as stub:
        async for response in stub.Resume(request, timeout=60):
            take(seen, response)
    assert seen.finished is not None


async def test_an_http_client_that_goes_away_comes_back_by_its_last_event(pair: Stack) -> None:
    first, second = urls(pair, "gateway-1")
    request = sse.body(max_tokens=LONG, temperature=1.0, stop=["zzzz"])
    whole = await sse.persist([second], request)
    seen = sse.Streamed()

    def leave(got: sse.Streamed) -> None:
        if got.events == 5:
            raise ConnectionResetError("the client goes away")

    with pytest.raises(ConnectionResetError):
        await sse.read(first, request, seen, on_event=leave)
    await asyncio.to_thread(wait_until_idle, pair)
    await sse.read(second, request, seen)
    assert (seen.token_ids, seen.text) == (whole.token_ids, whole.text)
    assert (seen.finish_reason, seen.usage["completion_tokens"]) == ("length", LONG)


async def test_of_two_clients_that_resume_one_session_the_newer_gets_it_whole(
    pair: Stack, undisturbed: dict[str, Generated]
) -> None:
    """They come at once, to two gateways. Whoever loses is told so; nobody gets a wrong token."""
    first, second = addresses(pair, "gateway-1")
    for _ in range(5):
        started = Generated()
        await begin(first, kinds.request("seeded"), started, 3)
        outcomes = await asyncio.gather(
            *(resumed(address, started.generation_id) for address in (first, second) * 2)
        )
        whole = [got for got in outcomes if isinstance(got, Generated)]
        assert whole, outcomes
        for got in whole:
            kinds.check({"seeded": got}, undisturbed)
        for error in outcomes:
            assert isinstance(error, Generated) or error.code() == grpc.StatusCode.ABORTED, error


async def resumed(address: str, generation_id: str) -> Generated | aio.AioRpcError:
    """All tokens of a generation, or why it ended."""
    seen = Generated(generation_id=generation_id)
    try:
        await go_on(address, seen)
    except aio.AioRpcError as error:
        return error
    return seen


async def test_a_generation_that_was_cancelled_cannot_be_resumed_past_its_end(
    pair: Stack, store_link: Proxy
) -> None:
    seen = Generated()
    async with connected(pair.grpc) as stub:
        async for response in stub.Generate(kinds.request("seeded")):
            take(seen, response)
            if seen.deltas == 3 and seen.finished is None:
                cancel = generation_pb2.CancelRequest(generation_id=seen.generation_id)
                assert (await stub.Cancel(cancel, timeout=20)).found
        assert seen.finished is not None
        again = await resumed(pair.grpc, seen.generation_id)
    assert isinstance(again, Generated), again
    assert again.token_ids == seen.token_ids
    assert again.finished.reason == seen.finished.reason


async def test_a_generation_that_nobody_knows_is_not_found(pair: Stack, store_link: Proxy) -> None:
    with pytest.raises(SessionNotFoundError):
        await kinds.stored(f"redis://{store_link.target}/0", "nobody")
    got = await resumed(pair.grpc, "nobody")
    assert isinstance(got, aio.AioRpcError)
    assert got.code() == grpc.StatusCode.NOT_FOUND
