"""Gateways go while streams run through them: scaled down they are waited for, a lost one is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from outrider.client import AsyncClient
from tests.processes import parse_metrics, total
from tests.serve_cluster import ServeApp
from tests.sse import Streamed, body, persist

STREAMS = 4
TOKENS = 400


def request(number: int) -> dict[str, Any]:
    return body(f"Stream {number} goes through", temperature=0.8, max_tokens=TOKENS, seed=number)


async def over_http(app: ServeApp, number: int, begun: asyncio.Event) -> Streamed:
    def on_event(seen: Streamed) -> None:
        if len(seen.token_ids) > 10:
            begun.set()

    return await persist([app.cluster.http], request(number), on_event=on_event)


async def open_streams(app: ServeApp) -> dict[str, float]:
    """Streams that each gateway has, by its page of metrics."""
    async with httpx.AsyncClient(trust_env=False) as client:
        groups = (await client.get(f"{app.cluster.http}/metrics/targets")).json()
        found = {}
        for group in groups:
            if group["labels"]["role"] == "gateway":
                page = await client.get(f"http://{group['targets'][0]}/metrics")
                found[group["targets"][0]] = total(parse_metrics(page.text), "outrider_open_streams")
        return found


@asynccontextmanager
async def running(app: ServeApp) -> AsyncIterator[list[asyncio.Task[Streamed]]]:
    """Streams that have begun, on both of two gateways."""
    while True:
        begun = [asyncio.Event() for _ in range(STREAMS)]
        tasks = [asyncio.create_task(over_http(app, number, begun[number])) for number in range(STREAMS)]
        await asyncio.gather(*(one.wait() for one in begun))
        if sum(count > 0 for count in (await open_streams(app)).values()) == 2:
            break
        await asyncio.gather(*tasks)
    assert not any(task.done() for task in tasks), "TOKENS is too small"
    yield tasks


async def whole(app: ServeApp, tasks: list[asyncio.Task[Streamed]]) -> list[Streamed]:
    """The streams, each checked against one that nothing disturbed."""
    streams = await asyncio.gather(*tasks)
    alone = await asyncio.gather(*(over_http(app, number, asyncio.Event()) for number in range(STREAMS)))
    assert [one.token_ids for one in streams] == [one.token_ids for one in alone]
    assert [one.text for one in streams] == [one.text for one in alone]
    return streams


async def test_streams_of_a_gateway_that_is_scaled_down_end_where_they_are(tiny_app: ServeApp) -> None:
    tiny_app.scale(gateway=2)
    async with running(tiny_app) as tasks:
        await asyncio.to_thread(tiny_app.scale, wait=False, gateway=1)
        streams = await whole(tiny_app, tasks)
    assert [one.resumes for one in streams] == [0] * STREAMS
    tiny_app.wait_running(gateway=1)


async def test_streams_of_a_gateway_that_is_lost_are_resumed_at_the_other(tiny_app: ServeApp) -> None:
    tiny_app.scale(gateway=2)
    pids = tiny_app.pids("gateway")
    progress = asyncio.Event()
    async with running(tiny_app) as tasks, AsyncClient(tiny_app.cluster.grpc) as client:
        ours = [asyncio.create_task(generated(client, number, progress.set)) for number in range(STREAMS)]
        await progress.wait()
        os.kill(pids[0], signal.SIGKILL)
        streams = await whole(tiny_app, tasks)
        assert [await one for one in ours] == [one.token_ids for one in streams]
    assert 0 < sum(one.resumes > 0 for one in streams) < STREAMS


async def generated(client: AsyncClient, number: int, progress: Callable[[], None]) -> list[int]:
    """The tokens of the same generation through our own client."""
    tokens: list[int] = []
    asked = request(number)
    names = ("max_tokens", "temperature", "seed", "ignore_eos")
    async with client.stream(asked["prompt"], **{name: asked[name] for name in names}) as stream:
        async for event in stream:
            tokens += getattr(event, "token_ids", ())
            if len(tokens) > 10:
                progress()
    return tokens
