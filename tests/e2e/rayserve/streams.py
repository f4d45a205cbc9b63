"""Streams through Serve's gRPC ingress that are disturbed on their way, and what they must be nonetheless."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from outrider.telemetry import names
from outrider.wire.v1 import generation_pb2
from tests.processes import parse_metrics, total
from tests.serve_cluster import ServeApp
from tests.traffic import Generated, ask, connected, generate

STREAMS = 4
TIMEOUT_S = 400.0
"""Of a stream that waits for a verifier."""


def request(number: int, tokens: int) -> generation_pb2.GenerateRequest:
    """Of a stream: as many as it is asked for, each a function of those before."""
    return ask(f"Stream {number} rides ahead", seed=number, temperature=0.8, max_tokens=tokens)


async def undisturbed(app: ServeApp, tokens: int) -> list[list[int]]:
    """The tokens of each stream."""
    async with connected(app.cluster.grpc) as stub:
        streams = (generate(stub, request(number, tokens), timeout_s=TIMEOUT_S) for number in range(STREAMS))
        return [one.token_ids for one in await asyncio.gather(*streams)]


async def disturbed(app: ServeApp, tokens: int, disturb: Callable[[], object]) -> list[list[int]]:
    """The tokens of each stream, where `disturb` is called in a thread once all of them have some.

    All of them must still run when it returns.
    """
    begun = [asyncio.Event() for _ in range(STREAMS)]

    async def stream(stub: Any, number: int) -> Generated:
        asked = request(number, tokens)
        return await generate(stub, asked, on_delta=lambda _: begun[number].set(), timeout_s=TIMEOUT_S)

    async with connected(app.cluster.grpc) as stub:
        running = [asyncio.create_task(stream(stub, number)) for number in range(STREAMS)]
        await asyncio.gather(*(one.wait() for one in begun))
        await asyncio.to_thread(disturb)
        assert not any(task.done() for task in running), f"{tokens} tokens are too few to be disturbed"
        return [one.token_ids for one in await asyncio.gather(*running)]


async def steady(app: ServeApp, tokens: int, over: Callable[[], bool]) -> list[list[list[int]]]:
    """The tokens of streams that run one after the other, so many at a time, until it is `over`."""
    waves = []
    while not over():
        waves.append(await undisturbed(app, tokens))
    return waves


def moved(app: ServeApp) -> float:
    """How often the gateway had to look for another verifier for a session. For one gateway replica."""
    page = httpx.get(f"{app.cluster.http}/metrics", trust_env=False, timeout=30).text
    return total(parse_metrics(page), names.FAILOVERS.name)
