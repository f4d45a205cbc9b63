"""One stream as the event loop sees it."""

from __future__ import annotations

import asyncio

from outrider.drafting import streams
from outrider.drafting.streams import DraftStream
from outrider.wire.v1 import drafter_pb2 as pb


async def is_blocked(task: asyncio.Task[object]) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


async def test_what_is_queued_goes_out_together_and_before_the_end() -> None:
    stream = DraftStream(1)
    taker = asyncio.create_task(stream.take())
    assert await is_blocked(taker)
    stream.send([pb.DraftEvent(session_id="a"), pb.DraftEvent(session_id="b")])
    stream.end()
    assert [event.session_id for event in await taker] == ["a", "b"]
    assert await stream.take() == []


async def test_no_more_is_read_while_the_scheduler_is_behind() -> None:
    stream = DraftStream(1)
    stream.submitted(streams.MAX_UNAPPLIED + 1)
    waiter = asyncio.create_task(stream.room())
    assert await is_blocked(waiter)
    stream.applied(1)
    await asyncio.wait_for(waiter, 5)


async def test_no_more_is_read_while_the_peer_does_not_read() -> None:
    stream = DraftStream(1)
    stream.send([pb.DraftEvent()] * (streams.MAX_UNSENT + 1))
    waiter = asyncio.create_task(stream.room())
    assert await is_blocked(waiter)
    assert len(await stream.take()) == streams.MAX_UNSENT + 1
    await asyncio.wait_for(waiter, 5)
