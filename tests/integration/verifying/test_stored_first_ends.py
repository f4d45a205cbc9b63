"""Tokens that wait to be stored, and how their sessions end: no stream waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider.core.errors import StaleEpochError, StoreUnavailableError, UnavailableError
from outrider.core.params import SamplingParams, StopParams
from outrider.core.sessions import Commit, FinishReason, SessionRecord, SpeculationStats, Usage
from outrider.sessions.writer import CommitWriter
from outrider.verifying.streams import StreamTable
from outrider.wire.messages import SessionFinished, SessionTokens
from tests.integration.verifying.harness import Verifier, running, until
from tests.integration.verifying.test_stored_first import TOKEN, Reader, SlowStore, start, trailing


def generated(verifier: Verifier) -> int:
    record = verifier.replica.streams.snapshot("s")
    return len(record.tokens) if record else 0


@pytest.mark.parametrize("count", [3, 480])
async def test_a_verifier_that_stops_ends_what_waits(
    tiny: Path, prompts: list[list[int]], count: int
) -> None:
    """Whether the session had ended by itself or not; the store gets its tokens, so others can go on."""
    store = SlowStore()
    async with running(tiny, store=store) as verifier:
        store.open.clear()
        reader = start(verifier, prompts[2], TOKEN, "s", count)
        await until(lambda: generated(verifier) >= 3)
        await verifier.replica.drain(0.1)
        with pytest.raises(UnavailableError):
            await reader.task
        assert reader.tokens == []
        store.open.set()
        await until(lambda: not verifier.replica.writer.pending)
        assert len((await store.load("s")).tokens) >= 3


@pytest.mark.parametrize("away", [False, True])
async def test_a_client_that_hangs_up_leaves_nothing_behind(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """KV is free at once; the place in the table once the store is back, or has had its time."""
    if away:
        monkeypatch.setattr("outrider.verifying.leaving.FLUSH_S", 0.2)
    store = SlowStore()
    async with running(tiny, store=store, detached_s=0.0) as verifier:
        store.open.clear()
        reader = start(verifier, prompts[2], TOKEN, "s", 480)
        await until(lambda: generated(verifier) >= 3)
        reader.task.cancel()
        await until(lambda: verifier.used == 0)
        if not away:
            assert "s" in verifier.replica.streams
            store.open.set()
        await until(lambda: not len(verifier.replica.streams))
        store.open.set()
        await until(lambda: not verifier.replica.writer.pending)
        record = await store.load("s")
        assert record.finish_reason is None and len(record.tokens) >= 3  # it can be resumed


async def test_one_that_has_ended_here_and_is_taken_over(tiny: Path, prompts: list[list[int]]) -> None:
    """The engine thread knows it no more, so the stream has to hear of its new owner from the store."""
    store = SlowStore()
    store.most = 8
    async with running(tiny, store=store) as first, running(tiny, store=store) as second:
        seen = start(first, prompts[2], TOKEN, "s", 12)
        stored = await trailing(first, store, seen)
        await until(lambda: generated(first) == 12 and first.used == 0)
        rest = Reader(second.resume("s", stored))
        await rest.task
        store.most = 10**9
        with pytest.raises(StaleEpochError):
            await seen.task
        assert [*seen.tokens, *rest.tokens] == list((await store.load("s")).tokens)
        assert not len(first.replica.streams) and not len(second.replica.streams)


RECORD = SessionRecord("s", (1, 2), SamplingParams(), StopParams(9), speculation=TOKEN)
FINISHED = SessionFinished(FinishReason.LENGTH, Usage(2, 6), SpeculationStats())


@asynccontextmanager
async def overflowing(store: SlowStore) -> AsyncIterator[tuple[StreamTable, CommitWriter, Reader]]:
    """A session of six tokens whose writes were given up, since too many waited."""
    streams = StreamTable()
    writer = CommitWriter(
        store,
        max_pending=3,
        on_fenced=streams.fenced,
        on_stored=streams.stored,
        snapshot=streams.snapshot,
    )
    writer.start()
    await store.create(RECORD)
    store.open.clear()
    reader = Reader(streams.add(RECORD).events())
    for index in range(6):
        streams.deliver([("s", SessionTokens(index, (index,)))])
        writer.put([Commit("s", 1, index, (index,))])
    assert writer.pending < 6
    yield streams, writer, reader
    await writer.close(5.0)


async def test_writes_that_were_given_up_are_made_again() -> None:
    store = SlowStore()
    async with overflowing(store) as (streams, _, reader):
        assert reader.tokens == []
        store.open.set()
        await until(lambda: reader.tokens == [0, 1, 2, 3, 4, 5])
        assert (await store.load("s")).tokens == (0, 1, 2, 3, 4, 5)
        streams.deliver([("s", FINISHED)])
        await reader.task
        assert not len(streams)


async def test_an_end_that_was_given_up_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.verifying.streams.WITHHELD_S", 0.2)
    store = SlowStore()
    async with overflowing(store) as (streams, writer, reader):
        streams.deliver([("s", FINISHED)])
        writer.put([Commit("s", 1, 6, (), FinishReason.LENGTH)])
        with pytest.raises(StoreUnavailableError):
            await reader.task
        assert reader.tokens == [] and not len(streams)
        store.open.set()
        await asyncio.wait_for(streams.wait_ended("s"), 1.0)
