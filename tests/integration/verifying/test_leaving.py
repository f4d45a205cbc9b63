"""Sessions that nobody reads, and sessions of a verifier that stops: nothing is lost, and nothing is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.errors import (
    SessionMovedError,
    StaleEpochError,
    UnavailableError,
)
from outrider.core.params import SpeculationParams
from outrider.core.sessions import FinishReason
from outrider.engine.api import StepItem, StepOutput
from outrider.sessions.memory import MemoryStore
from outrider.wire import convert
from outrider.wire.messages import SessionEvent, SessionFinished, SessionRequest, SessionTokens, VerifierInfo
from tests.integration.verifying.harness import (
    TIMEOUT_S,
    Verifier,
    request,
    running,
    sampled,
    until,
)
from tests.integration.verifying.scripted import ScriptedDrafter, scripted
from tests.integration.verifying.test_stored_first import TOKEN, SlowStore
from tests.integration.verifying.test_takeover import COUPLED, again

LONG = 480


async def read(stream: AsyncIterator[SessionEvent], count: int) -> list[int]:
    """At least so many tokens."""
    got: list[int] = []
    while len(got) < count:
        event = await anext(stream)
        got += event.token_ids if isinstance(event, SessionTokens) else ()
    return got


async def rest(stream: AsyncIterator[SessionEvent], got: list[int]) -> None:
    """All that is left is added to `got`; raises what ends the stream."""
    async for event in stream:
        got += event.token_ids if isinstance(event, SessionTokens) else ()


async def left(verifier: Verifier, wanted: SessionRequest, count: int) -> list[int]:
    """Read some tokens of a new session and hang up."""
    stream = verifier.stream(wanted)
    got = await read(stream, count)
    await stream.aclose()
    await until(lambda: wanted.session_id not in verifier.replica.streams or unread(verifier, wanted))
    return got


def slow(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take a while: a session does not end before a test has looked at it."""
    step = verifier.engine.step

    def slowly(items: Sequence[StepItem]) -> StepOutput:
        time.sleep(0.02)
        return step(items)

    monkeypatch.setattr(verifier.engine, "step", slowly)


def unread(verifier: Verifier, wanted: SessionRequest) -> bool:
    return verifier.replica.streams.is_unread(wanted.session_id)


def moved(verifier: Verifier, kind: str) -> float:
    return verifier.metric("outrider_sessions_moved_total", kind=kind)


async def info(verifier: Verifier) -> VerifierInfo:
    return convert.verifier_info_from_proto(await verifier.client.GetInfo(convert.verifier_info_request()))


@pytest.mark.parametrize("how", [COUPLED, TOKEN], ids=["coupled", "token"])
async def test_a_client_that_comes_back_in_time_finds_its_session_running(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    async with running(tiny, detached_s=600.0) as verifier:
        wanted = request(prompts[4], sampling=sampled(3), speculation=how, max_tokens=LONG)
        full = (await verifier.generate(again(wanted, "full"))).tokens
        got = await left(verifier, wanted, 5)
        reply = await verifier.resumed(wanted.session_id, len(got))
        assert got + reply.tokens == full
        assert (await verifier.store.load(wanted.session_id)).epoch == 1  # nobody had to claim it
        assert not moved(verifier, "claimed") and not moved(verifier, "parked")


@pytest.mark.parametrize("how", [COUPLED, TOKEN], ids=["coupled", "token"])
async def test_a_session_whose_client_stays_away_is_parked_and_can_be_resumed_anywhere(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    store, drafter = MemoryStore(), ScriptedDrafter(lambda held: [held.propose([1] * held.wanted)])
    async with (
        scripted(drafter) as config,
        running(tiny, store=store, drafters={"s": config}, detached_s=0.0) as first,
        running(tiny, store=store) as second,
    ):
        wanted = request(prompts[4], sampling=sampled(3), speculation=how, max_tokens=LONG)
        got = await left(first, wanted, 5)
        await until(lambda: not len(first.replica.streams))
        assert first.used == 0 and moved(first, "parked") == 1
        await until(lambda: not drafter.held)
        record = await store.load(wanted.session_id)
        assert record.finish_reason is None and record.tokens[: len(got)] == tuple(got)
        reply = await second.resumed(wanted.session_id, len(got), known=got)
        assert len(got) + len(reply.tokens) == LONG and reply.reason is FinishReason.LENGTH
        assert got + reply.tokens == list((await store.load(wanted.session_id)).tokens)
        if how is COUPLED:
            assert got + reply.tokens == (await second.generate(again(wanted, "full"))).tokens


async def test_a_session_that_nobody_reads_and_that_ends_by_itself_is_finished_in_the_store(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny, detached_s=600.0) as verifier:
        wanted = request(prompts[4], max_tokens=LONG)
        got = await left(verifier, wanted, 3)
        await until(lambda: not len(verifier.replica.streams))
        assert await verifier.replica.writer.flush(TIMEOUT_S)
        record = await verifier.store.load(wanted.session_id)
        assert record.finish_reason is FinishReason.LENGTH and len(record.tokens) == LONG
        reply = await verifier.resumed(wanted.session_id, len(got))
        assert got + reply.tokens == list(record.tokens) and reply.reason is FinishReason.LENGTH


@pytest.mark.parametrize("how", [COUPLED, TOKEN], ids=["coupled", "token"])
async def test_parking_is_answered_when_all_is_stored_and_free(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    async with running(tiny, detached_s=600.0) as verifier:
        wanted = request(prompts[4], sampling=sampled(3), speculation=how, max_tokens=LONG)
        stream = verifier.stream(wanted)
        got = await read(stream, 5)
        assert await verifier.cancel(wanted.session_id, park=True)
        assert verifier.used == 0 and wanted.session_id not in verifier.replica.streams
        held = await verifier.store.load(wanted.session_id)
        with pytest.raises(SessionMovedError):
            await rest(stream, got)
        assert held.finish_reason is None and held.tokens[: len(got)] == tuple(got)
        assert await verifier.cancel(wanted.session_id, park=True)  # again changes nothing
        reply = await verifier.resumed(wanted.session_id, len(got))
        assert len(got) + len(reply.tokens) == LONG
        assert await verifier.cancel(wanted.session_id, park=True)  # it has ended
        assert not await verifier.cancel("nobody", park=True)


@pytest.mark.parametrize("keep", [None, 3])
async def test_a_cancel_ends_a_parked_session(tiny: Path, prompts: list[list[int]], keep: int | None) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[4], max_tokens=LONG)
        got = await read(verifier.stream(wanted), 5)
        assert await verifier.cancel(wanted.session_id, park=True)
        held = (await verifier.store.load(wanted.session_id)).tokens
        assert held[:5] == tuple(got[:5])
        assert await verifier.cancel(wanted.session_id, keep, FinishReason.STOP)
        assert await verifier.replica.writer.flush(TIMEOUT_S)
        record = await verifier.store.load(wanted.session_id)
        assert record.finish_reason is FinishReason.STOP and record.tokens == held[:keep]


async def test_a_session_whose_deadline_passes_while_it_waits_never_starts(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, max_sessions=1, detached_s=600.0) as verifier:
        slow(verifier, monkeypatch)
        ahead = request(prompts[1], max_tokens=LONG)
        stream = verifier.stream(ahead)
        await read(stream, 1)
        wanted = request(prompts[4], max_tokens=LONG)
        call = verifier.client.Generate(convert.session_request_to_proto(wanted), timeout=0.3)
        with pytest.raises(Exception, match=r"(?i)deadline"):
            async for _ in call:
                pass
        await until(lambda: wanted.session_id not in verifier.replica.streams)
        assert ahead.session_id in verifier.replica.streams
        record = await verifier.store.load(wanted.session_id)
        assert record.tokens == () and record.finish_reason is None
        await verifier.cancel(ahead.session_id)
        assert verifier.metric("outrider_request_queue_time_seconds_count") == 1  # only one had its turn


async def test_a_drain_hands_over_whatever_waits_or_is_not_read_at_once_and_the_rest_in_the_end(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    async with (
        running(tiny, store=store, max_sessions=2, detached_s=600.0) as first,
        running(tiny, store=store) as second,
    ):
        slow(first, monkeypatch)
        runs, waits, lonely = (
            request(prompts[4], sampling=sampled(seed), max_tokens=LONG) for seed in range(3)
        )
        stream = first.stream(runs)
        got = await read(stream, 5)
        await left(first, lonely, 1)
        queued = first.stream(waits)
        await anext(queued)
        await until(lambda: first.replica.rounds.load.waiting == 1)
        assert (await info(first)).load.waiting == 1 and not (await info(first)).draining
        drained = asyncio.create_task(first.replica.drain(600.0))
        with pytest.raises(SessionMovedError):
            await rest(queued, [])
        await until(lambda: lonely.session_id not in first.replica.streams)
        assert runs.session_id in first.replica.streams and (await info(first)).draining
        with pytest.raises(UnavailableError):
            await first.generate(request(prompts[2]))
        with pytest.raises(UnavailableError):
            await first.resumed(lonely.session_id, 0)
        drained.cancel()
        await first.replica.drain(0.0)
        with pytest.raises(SessionMovedError):
            await rest(stream, got)
        assert first.used == 0 and not len(first.replica.streams)
        assert moved(first, "handed_over") == 2 and moved(first, "parked") == 1
        record = await store.load(runs.session_id)
        assert record.finish_reason is None and record.tokens[: len(got)] == tuple(got)
        assert len(record.tokens) >= len(got)
        for one, known in ((runs, got), (waits, []), (lonely, [])):
            reply = await second.resumed(one.session_id, len(known), known=known)
            full = await second.generate(again(one, f"{one.session_id}-full"))
            assert known + reply.tokens == full.tokens


@pytest.mark.parametrize("how", [COUPLED, TOKEN], ids=["coupled", "token"])
async def test_a_drain_does_not_wait_for_ever_for_a_store_that_is_away(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, how: SpeculationParams
) -> None:
    monkeypatch.setattr("outrider.verifying.leaving.FLUSH_S", 0.1)
    store = SlowStore()
    async with running(tiny, store=store) as verifier:
        wanted = request(prompts[4], sampling=sampled(3), speculation=how, max_tokens=LONG)
        stream = verifier.stream(wanted)
        got = await read(stream, 2)
        store.open.clear()
        async with asyncio.timeout(TIMEOUT_S):
            await verifier.replica.drain(0.0)
        with pytest.raises(SessionMovedError):
            await rest(stream, got)
        assert verifier.used == 0 and not len(verifier.replica.streams)
        store.open.set()
    assert (await store.load(wanted.session_id)).tokens[: len(got)] == tuple(got)


async def test_a_session_that_is_claimed_elsewhere_stops_and_is_counted_once(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[4], max_tokens=LONG)
        stream = verifier.stream(wanted)
        got = await read(stream, 1)
        held = await verifier.store.claim(wanted.session_id)
        with pytest.raises(StaleEpochError):
            await rest(stream, got)
        await until(lambda: verifier.used == 0)
        assert moved(verifier, "fenced") == 1
        assert (await verifier.store.load(wanted.session_id)).tokens == held.tokens


async def test_one_that_is_claimed_elsewhere_while_nobody_reads_it_leaves_too(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny, detached_s=600.0) as verifier:
        wanted = request(prompts[4], max_tokens=LONG)
        await left(verifier, wanted, 1)
        held = await verifier.store.claim(wanted.session_id)
        await until(lambda: verifier.used == 0 and not len(verifier.replica.streams))
        assert (await verifier.store.load(wanted.session_id)) == held


async def test_a_late_cancel_does_not_end_what_another_verifier_goes_on_with(
    tiny: Path, prompts: list[list[int]]
) -> None:
    store = MemoryStore()
    async with running(tiny, store=store) as first, running(tiny, store=store) as second:
        wanted = request(prompts[4], max_tokens=LONG)
        stream = first.stream(wanted)
        await read(stream, 1)
        assert await first.cancel(wanted.session_id, park=True)
        resumed = second.resume(wanted.session_id, 0)
        got = await read(resumed, 1)
        assert await first.cancel(wanted.session_id)  # what it parked is not its own any more
        last: list[SessionEvent] = []
        async for event in resumed:
            last.append(event)
            got += event.token_ids if isinstance(event, SessionTokens) else ()
        assert isinstance(last[-1], SessionFinished) and last[-1].reason is FinishReason.LENGTH
        assert len(got) == LONG and not moved(first, "fenced")


@pytest.mark.parametrize("restored", [False, True])
async def test_writes_of_the_time_before_do_not_stop_a_session_that_came_back(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    """The store was so slow that the session was parked, and taken up again, before they were answered."""
    monkeypatch.setattr("outrider.verifying.leaving.FLUSH_S", 0.1)
    monkeypatch.setattr("outrider.verifying.takeover.SETTLE_S", 0.1)
    store = SlowStore()
    async with running(tiny, store=store) as verifier:
        wanted = request(prompts[4], sampling=sampled(3), max_tokens=LONG)
        stream = verifier.stream(wanted)
        got = await read(stream, 2)
        store.open.clear()
        await until(lambda: verifier.replica.writer.pending > 1)
        await stream.aclose()
        assert await verifier.cancel(wanted.session_id, park=True)
        assert verifier.used == 0 and verifier.replica.writer.pending
        if restored:
            newer = verifier.stream(replace(wanted, generated=tuple(got), epoch=2))
        else:
            newer = verifier.resume(wanted.session_id, len(got), known=got)
        await anext(newer)
        store.open.set()  # what was on its way is refused now
        await rest(newer, got)
        assert len(got) == LONG and not moved(verifier, "fenced")
        assert await verifier.replica.writer.flush(TIMEOUT_S)
        record = await store.load(wanted.session_id)
        assert list(record.tokens) == got and record.finish_reason is FinishReason.LENGTH
        assert record.epoch == 2
