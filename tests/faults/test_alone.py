"""One verifier, no Redis: what it refuses when it is full, deadlines, and its own death."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import httpx
import pytest
from grpc import aio

from outrider.wire import metadata
from tests import sse
from tests.faults import kinds
from tests.idle import held, wait_until_idle
from tests.stack import Stack, tiny_config, total, wait_until
from tests.traffic import Generated, ask, connected, generate, persist, take

RUNNING, WAITING = 4, 2
LONG = 1500
ALONE = ("greedy", "seeded", "logprobs", "grammar")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Room for few sessions. They are kept in the verifier's memory."""
    folder = tmp_path_factory.mktemp("alone")
    config = tiny_config(folder)
    config["drafters"] = {"lookup": config["drafters"]["lookup"]}
    config["verifier"] |= {"max_sessions": RUNNING, "max_queue": WAITING, "detached_s": 0.5}
    config["gateway"] = {"probe_s": 0.2, "verifier_timeout_s": 1.0, "failover_s": 60}
    with Stack(folder, config) as running:
        yield running


def holds(stack: Stack, running: int, waiting: int) -> bool:
    verifier = stack["verifier"].metrics()
    return (
        total(verifier, "outrider_num_requests_running"),
        total(verifier, "outrider_num_requests_waiting"),
    ) == (running, waiting)


class Filled:
    """Streams that fill the verifier until the block ends."""

    def __init__(self, stack: Stack, streams: int) -> None:
        self._stack, self._streams = stack, streams

    async def __aenter__(self) -> None:
        self._entered = connected(self._stack.grpc)
        stub = await self._entered.__aenter__()
        asked = [ask(drafter=None, max_tokens=LONG, seed=seed) for seed in range(self._streams)]
        self._tasks = [asyncio.create_task(generate(stub, request)) for request in asked]
        running = min(RUNNING, self._streams)
        await asyncio.to_thread(
            wait_until, lambda: holds(self._stack, running, self._streams - running), "it is full"
        )

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._entered.__aexit__(None, None, None)


async def test_a_full_queue_refuses_and_says_when_to_try_again(alone: Stack) -> None:
    async with Filled(alone, RUNNING + WAITING), connected(alone.grpc) as stub:
        with pytest.raises(aio.AioRpcError) as refused:
            await generate(stub, ask())
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(metadata.value(refused.value.trailing_metadata(), metadata.RETRY_AFTER_MS)) > 0
        answer = await asyncio.to_thread(
            httpx.post, f"{alone.http}{sse.PATH}", json=sse.body(), trust_env=False, timeout=30
        )
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
    await asyncio.to_thread(wait_until_idle, alone)
    async with connected(alone.grpc) as stub:
        assert len((await generate(stub, ask())).token_ids) == 64


async def test_a_deadline_that_passes_in_the_queue_costs_no_step(alone: Stack) -> None:
    async with Filled(alone, RUNNING), connected(alone.grpc) as stub:
        call = stub.Generate(ask(drafter=None, max_tokens=LONG), timeout=0.5)
        with pytest.raises(aio.AioRpcError) as late:
            async for response in call:
                assert response.WhichOneof("event") == "started"
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.to_thread(wait_until, lambda: holds(alone, RUNNING, 0), "it is out of the queue")


async def test_a_deadline_that_passes_in_flight_frees_everything(alone: Stack) -> None:
    seen = Generated()
    async with connected(alone.grpc) as stub:
        with pytest.raises(aio.AioRpcError) as late:
            async for response in stub.Generate(ask(drafter=None, max_tokens=2000), timeout=0.7):
                take(seen, response)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.to_thread(wait_until_idle, alone)


async def test_a_client_that_stops_reading_holds_nothing_for_ever(alone: Stack) -> None:
    """What it has not read is bounded, and once its verifier has finished nothing is held there."""
    request = ask(drafter=None, max_tokens=700)
    request.logprobs.top = 20  # more bytes than the windows of all connections on the way hold
    async with connected(alone.grpc) as stub:
        call = stub.Generate(request)
        await call.read()
        empty = lambda: not held(alone, absent=("gateway",))  # noqa: E731
        await asyncio.to_thread(wait_until, empty, "the verifier holds nothing", timeout_s=60)
        call.cancel()
    await asyncio.to_thread(wait_until_idle, alone)


async def test_a_verifier_that_is_started_again_goes_on_from_what_the_gateway_has(alone: Stack) -> None:
    """Its memory, and with it the store, is lost."""
    whole = {}
    async with connected(alone.grpc) as stub:
        for kind in ALONE:
            whole[kind] = await generate(stub, kinds.request(kind, drafter=None))
    barrier = kinds.Barrier(len(ALONE), 6, alone["verifier"].restart)
    answers = await asyncio.gather(
        *(
            persist([alone.grpc], kinds.request(kind, drafter="lookup"), on_delta=barrier.watch())
            for kind in ALONE
        )
    )
    assert barrier.struck
    assert not any(got.resumes for got in answers), "a client had to help"
    kinds.check(dict(zip(ALONE, answers, strict=True)), whole)
