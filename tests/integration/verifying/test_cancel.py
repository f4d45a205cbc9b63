"""A Cancel that comes early, before the session runs, or late, after it has finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider.core.errors import UnavailableError
from outrider.core.sessions import FinishReason
from outrider.sessions.memory import MemoryStore
from outrider.sessions.redis import RedisStore
from outrider.wire.messages import SessionEvent, SessionFinished, SessionStarted
from tests.integration.verifying.harness import TIMEOUT_S, Verifier, request, running, until
from tests.servers import RedisServer, redis_server


async def cancel_in_mid_call(
    verifier: Verifier, server: RedisServer, events: AsyncIterator[SessionEvent], session_id: str
) -> None:
    """Cancel while the store, frozen, has not answered yet: the session ends as soon as it runs."""
    server.freeze()
    first = asyncio.ensure_future(anext(events))
    await until(lambda: session_id in verifier.replica.servicer._arrivals)
    cancel = asyncio.create_task(verifier.cancel(session_id, keep=0))
    await asyncio.wait([cancel], timeout=0.2)
    assert not cancel.done()
    server.thaw()
    assert await cancel
    assert isinstance(await first, SessionStarted)
    last = [event async for event in events][-1]
    assert isinstance(last, SessionFinished) and last.reason is FinishReason.CANCELLED
    assert last.usage.completion_tokens == 0
    assert await verifier.replica.writer.flush(TIMEOUT_S)
    record = await verifier.store.load(session_id)
    assert (record.tokens, record.finish_reason) == ((), FinishReason.CANCELLED)


async def test_a_cancel_while_the_session_is_created(tiny: Path) -> None:
    with redis_server() as server:
        store = RedisStore(server.url, timeout_s=TIMEOUT_S)
        async with running(tiny, store=store) as verifier:
            wanted = request([5], max_tokens=500)
            await cancel_in_mid_call(verifier, server, verifier.stream(wanted), wanted.session_id)
            assert verifier.used == 0
        await store.close()


async def test_a_cancel_while_the_session_is_taken_over(tiny: Path) -> None:
    with redis_server() as server:
        store = RedisStore(server.url, timeout_s=TIMEOUT_S)
        async with running(tiny, store=store) as first:
            wanted = request([5], max_tokens=500)
            stream = first.stream(wanted)
            await anext(stream)
            await first.replica.drain(0.0)
            with pytest.raises(UnavailableError):
                async for _ in stream:
                    pass
        async with running(tiny, store=store) as second:
            events = second.resume(wanted.session_id, 0)
            await cancel_in_mid_call(second, server, events, wanted.session_id)
        await store.close()


async def test_a_cancel_of_a_session_whose_creation_fails_finds_nothing(tiny: Path) -> None:
    with redis_server() as server:
        store = RedisStore(server.url, timeout_s=0.5)
        async with running(tiny, store=store) as verifier:
            server.freeze()
            resumed = asyncio.ensure_future(anext(verifier.resume("s-1", 0)))
            await until(lambda: "s-1" in verifier.replica.servicer._arrivals)
            assert not await verifier.cancel("s-1")
            with pytest.raises(UnavailableError):
                await resumed
        await store.close()


@pytest.mark.parametrize("keep", [0, 3, 24])
async def test_a_cancel_after_the_end_cuts_what_the_store_holds(tiny: Path, keep: int) -> None:
    async with running(tiny) as verifier:
        wanted = request([5, 6])
        reply = await verifier.generate(wanted)
        assert reply.reason is FinishReason.LENGTH and len(reply.tokens) == 24
        for late in (keep, keep, 24):  # again changes nothing, nor does one that would keep more
            assert await verifier.cancel(wanted.session_id, keep=late, reason=FinishReason.STOP)
            assert await verifier.replica.writer.flush(TIMEOUT_S)
            record = await verifier.store.load(wanted.session_id)
            assert list(record.tokens) == reply.tokens[:keep] and record.finish_reason is FinishReason.STOP
        assert not verifier.metric("outrider_store_errors_total")


async def test_a_cancel_after_the_end_that_keeps_all_changes_nothing(tiny: Path) -> None:
    async with running(tiny) as verifier:
        wanted = request([5, 6])
        reply = await verifier.generate(wanted)
        assert await verifier.cancel(wanted.session_id)
        assert await verifier.replica.writer.flush(TIMEOUT_S)
        record = await verifier.store.load(wanted.session_id)
        assert list(record.tokens) == reply.tokens and record.finish_reason is FinishReason.LENGTH


async def test_a_late_cancel_does_not_touch_a_session_that_somebody_took_over(tiny: Path) -> None:
    store = MemoryStore()
    async with running(tiny, store=store) as verifier:
        wanted = request([5, 6])
        reply = await verifier.generate(wanted)
        assert await verifier.replica.writer.flush(TIMEOUT_S)
        await store.claim(wanted.session_id)
        assert await verifier.cancel(wanted.session_id, keep=2)
        assert await verifier.replica.writer.flush(TIMEOUT_S)
        assert list((await store.load(wanted.session_id)).tokens) == reply.tokens


async def test_only_so_many_finished_sessions_are_remembered(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.verifying.streams.MAX_FINISHED", 2)
    async with running(tiny) as verifier:
        wanted = [request([5], max_tokens=1) for _ in range(3)]
        for one in wanted:
            await verifier.generate(one)
        found = [await verifier.cancel(one.session_id, keep=0) for one in wanted]
        assert found == [False, True, True]
