"""Streams through Serve's gRPC ingress that are disturbed on their way, and what they must be nonetheless."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx

from outrider.telemetry import names
from outrider.wire.v1 import generation_pb2
from tests.processes import parse_metrics, total
from tests.serve_cluster import ServeApp
from tests.traffic import Generated, ask, connected, generate

STREAMS = 4
TOKENS = 1500
"""Enough for a replica to come or go meanwhile."""


def request(number: int) -> generation_pb2.GenerateRequest:
    """Of a stream."""
    return ask(f"Stream {number} rides ahead", seed=number, temperature=0.8, max_tokens=TOKENS)


async def undisturbed(app: ServeApp) -> list[list[int]]:
    """The tokens of each stream."""
    async with connected(app.cluster.grpc) as stub:
        done = await asyncio.gather(*(generate(stub, request(number)) for number in range(STREAMS)))
    return [one.token_ids for one in done]


async def disturbed(app: ServeApp, disturb: Callable[[], object]) -> list[list[int]]:
    """The tokens of each stream, where `disturb` is called in a thread once all of them have some.

    All of them must still run when it returns.
    """
    begun = [asyncio.Event() for _ in range(STREAMS)]

    def watching(number: int) -> Callable[[Generated], None]:
        return lambda _: begun[number].set()

    async with connected(app.cluster.grpc) as stub:
        running = [
            asyncio.create_task(generate(stub, request(number), on_delta=watching(number)))
            for number in range(STREAMS)
        ]
        await asyncio.gather(*(one.wait() for one in begun))
        await asyncio.to_thread(disturb)
        assert not any(task.done() for task in running), "TOKENS is too small: nothing was disturbed"
        return [one.token_ids for one in await asyncio.gather(*running)]


def moved(app: ServeApp) -> float:
    """How often the gateway had to look for another verifier for a session. For one gateway replica."""
    page = httpx.get(f"{app.cluster.http}/metrics", trust_env=False, timeout=30).text
    return total(parse_metrics(page), names.FAILOVERS.name)
