"""A client that stays connected but reads nothing does not hold a request for ever."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from outrider.gateway.openai.exchange import unless_gone


def connected() -> Request:
    """A request of a client that never goes away."""

    async def receive():
        await asyncio.Event().wait()

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


async def test_an_answer_that_nobody_reads_is_given_up():
    cancelled = asyncio.Event()

    async def blocked() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "ok"

    with pytest.raises(ClientDisconnect):
        await unless_gone(connected(), blocked(), 0.01)
    assert cancelled.is_set()


async def test_an_answer_that_is_read_is_not():
    async def answer() -> str:
        return "ok"

    assert await unless_gone(connected(), answer(), 60.0) == "ok"
