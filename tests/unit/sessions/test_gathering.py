"""Calls that are made of many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outrider.sessions.gathering import Gatherer


class Server:
    """Doubles numbers, when it is let."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.let = asyncio.Event()
        self.begun = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, items: list[int]) -> list[int]:
        self.calls.append(items)
        self.begun.set()
        await self.let.wait()
        if self.error is not None:
            raise self.error
        return [2 * item for item in items]


@asynccontextmanager
async def gathering(
    max_items: int = 10, max_weight: int = 100
) -> AsyncIterator[tuple[Gatherer[int, int], Server]]:
    server = Server()
    gatherer = Gatherer(server.send, max_items=max_items, max_weight=max_weight, weigh=lambda item: item)
    yield gatherer, server
    await gatherer.close()


def asking(gatherer: Gatherer[int, int], *items: int) -> asyncio.Task[list[int]]:
    return asyncio.create_task(gatherer.ask(items))


async def test_what_begins_together_goes_together_and_the_rest_with_the_next_call() -> None:
    async with gathering() as (gatherer, server):
        first = [asking(gatherer, 1, 2), asking(gatherer, 3)]
        await server.begun.wait()
        second = [asking(gatherer, 4), asking(gatherer), asking(gatherer, 5, 6)]
        await asyncio.sleep(0)
        server.let.set()
        assert await asyncio.gather(*first, *second) == [[2, 4], [6], [8], [], [10, 12]]
        assert server.calls == [[1, 2, 3], [4, 5, 6]]


async def test_calls_are_bounded_in_items_and_weight() -> None:
    async with gathering(max_items=3, max_weight=10) as (gatherer, server):
        server.let.set()
        assert await gatherer.ask([1, 1, 1, 1, 9, 2, 50, 1]) == [2, 2, 2, 2, 18, 4, 100, 2]
        assert server.calls == [[1, 1, 1], [1, 9], [2], [50], [1]]


async def test_an_error_is_raised_by_all_that_were_in_the_call_and_by_no_other() -> None:
    async with gathering() as (gatherer, server):
        first = [asking(gatherer, 1, 2), asking(gatherer, 3)]
        await server.begun.wait()
        server.error = ValueError("broken")
        server.let.set()
        for task in first:
            with pytest.raises(ValueError, match="broken"):
                await task
        server.error = None
        assert await gatherer.ask([4]) == [8]


async def test_an_item_whose_caller_has_gone_is_not_sent() -> None:
    async with gathering() as (gatherer, server):
        first = asking(gatherer, 1)
        await server.begun.wait()
        gone, stays = asking(gatherer, 2), asking(gatherer, 3)
        await asyncio.sleep(0)
        gone.cancel()
        server.let.set()
        assert await asyncio.gather(first, stays) == [[2], [6]]
        assert server.calls == [[1], [3]]


async def test_a_caller_that_goes_while_its_call_is_under_way_costs_the_others_nothing() -> None:
    async with gathering() as (gatherer, server):
        gone, stays = asking(gatherer, 1), asking(gatherer, 2)
        await server.begun.wait()
        gone.cancel()
        await asyncio.sleep(0)
        server.let.set()
        assert await stays == [4]


async def test_close_refuses_all_that_wait() -> None:
    async with gathering() as (gatherer, server):
        first = asking(gatherer, 1)
        await server.begun.wait()
        second = asking(gatherer, 2)
        await asyncio.sleep(0)
        await gatherer.close()
        for task in (first, second):
            with pytest.raises(ConnectionError, match="closed"):
                await task
        await gatherer.close()
