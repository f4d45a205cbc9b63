"""By the rules "token" and "block" a client sees no token that the store does not have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from outrider.core.errors import OutriderError, StaleEpochError, StoreUnavailableError
from outrider.core.params import Acceptance, SpeculationParams
from outrider.core.sessions import Commit, FinishReason
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import SessionEvent, SessionFinished, SessionTokens
from tests.integration.verifying.harness import Verifier, request, running, sampled, until

TOKEN = SpeculationParams(acceptance=Acceptance.TOKEN)
BLOCK = SpeculationParams(acceptance=Acceptance.BLOCK)
COUPLED = SpeculationParams()


class SlowStore(MemoryStore):
    """Appends wait while it is shut; the first owner's fail when they come to more than `most` tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.most = 10**9

    async def append(self, commits: Sequence[Commit]) -> list[OutriderError | None]:
        await self.open.wait()
        lengths = [one.base_len + len(one.token_ids) for one in commits if one.epoch == 1]
        if max(lengths, default=0) > self.most:
            raise StoreUnavailableError("away")
        return list(await super().append(commits))


class Reader:
    """Reads a stream in the background."""

    def __init__(self, events: object) -> None:
        self.tokens: list[int] = []
        self._next = 0
        self.finished: SessionFinished | None = None
        self.task = asyncio.create_task(self._read(events))

    async def _read(self, events: object) -> None:
        async for event in events:  # type: ignore[attr-defined]
            self._take(event)

    def _take(self, event: SessionEvent) -> None:
        if isinstance(event, SessionTokens):
            assert event.first_token == self._next or not self.tokens
            self.tokens.extend(event.token_ids)
            self._next = event.first_token + len(event.token_ids)
        elif isinstance(event, SessionFinished):
            self.finished = event


def start(
    verifier: Verifier, prompt: list[int], how: SpeculationParams, session_id: str, count: int
) -> Reader:
    wanted = request(prompt, sampling=sampled(3), speculation=how, max_tokens=count, session_id=session_id)
    return Reader(verifier.stream(wanted))


@pytest.mark.parametrize("how", [TOKEN, BLOCK])
async def test_tokens_wait_for_the_store_and_those_of_coupled_sessions_do_not(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    store = SlowStore()
    async with running(tiny, store=store) as verifier:
        store.open.clear()
        fresh = start(verifier, prompts[2], how, "fresh", 20)
        await until(lambda: len(verifier.replica.streams) == 1)
        coupled = start(verifier, prompts[2], COUPLED, "coupled", 60)
        await coupled.task
        assert len(coupled.tokens) == 60
        assert fresh.tokens == [] and fresh.finished is None and "fresh" in verifier.replica.streams
        store.open.set()
        await fresh.task
        assert fresh.finished is not None and fresh.finished.reason is FinishReason.LENGTH
        assert tuple(fresh.tokens) == (await store.load("fresh")).tokens and len(fresh.tokens) == 20
        assert not len(verifier.replica.streams)


@pytest.mark.parametrize("count", [3, 480])
async def test_a_store_that_stays_away_ends_the_stream(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Whether the session had ended by itself meanwhile or not."""
    monkeypatch.setattr("outrider.verifying.streams.WITHHELD_S", 0.2)
    store = SlowStore()
    async with running(tiny, store=store) as verifier:
        store.open.clear()
        fresh = start(verifier, prompts[2], TOKEN, "s", count)
        with pytest.raises(StoreUnavailableError, match="stored before they are sent"):
            await fresh.task
        assert fresh.tokens == []
        await until(lambda: not len(verifier.replica.streams) and verifier.used == 0)
        store.open.set()


async def trailing(verifier: Verifier, store: SlowStore, reader: Reader) -> int:
    """Wait until the verifier is past what the store takes, and the client has all that was stored."""
    snapshot = verifier.replica.streams.snapshot
    await until(lambda: (record := snapshot("s")) is not None and len(record.tokens) > store.most)
    stored = (await store.load("s")).tokens
    await until(lambda: len(reader.tokens) == len(stored))
    assert tuple(reader.tokens) == stored and len(stored) <= store.most
    return len(stored)


async def test_whoever_takes_over_goes_on_from_what_the_client_saw(
    tiny: Path, prompts: list[list[int]]
) -> None:
    store = SlowStore()
    store.most = 12  # what comes after that is lost with the first verifier
    async with running(tiny, store=store) as first, running(tiny, store=store) as second:
        seen = start(first, prompts[2], TOKEN, "s", 40)
        stored = await trailing(first, store, seen)
        rest = Reader(second.resume("s", stored))
        await rest.task
        store.most = 10**9
        with pytest.raises(StaleEpochError):
            await seen.task
        assert len(seen.tokens) == stored
        assert [*seen.tokens, *rest.tokens] == list((await store.load("s")).tokens)
        assert len(rest.tokens) == 40 - stored


async def test_a_second_client_sees_no_more_than_the_first(tiny: Path, prompts: list[list[int]]) -> None:
    store = SlowStore()
    store.most = 8
    async with running(tiny, store=store) as verifier:
        first = start(verifier, prompts[2], TOKEN, "s", 30)
        stored = await trailing(verifier, store, first)
        second = Reader(verifier.resume("s", 1))
        with pytest.raises(StaleEpochError):
            await first.task
        await until(lambda: len(second.tokens) == stored - 1)
        store.most = 10**9
        await second.task
        assert [first.tokens[0], *second.tokens] == list((await store.load("s")).tokens)
        assert len(second.tokens) == 29


async def test_a_cancel_at_what_was_told_does_not_wait(tiny: Path, prompts: list[list[int]]) -> None:
    """As the gateway does it at a stop string."""
    store = SlowStore()
    store.most = 8
    async with running(tiny, store=store) as verifier:
        reader = start(verifier, prompts[2], TOKEN, "s", 480)
        stored = await trailing(verifier, store, reader)
        assert await verifier.cancel("s", keep=stored - 1, reason=FinishReason.STOP)
        await reader.task
        assert reader.finished is not None and reader.finished.usage.completion_tokens == stored - 1
        assert len(reader.tokens) == stored
        store.most = 10**9
        await until(lambda: not verifier.replica.writer.pending)
        assert (await store.load("s")).tokens == tuple(reader.tokens[:-1])


async def test_a_cancel_of_one_that_has_ended_cuts_it_in_the_store(
    tiny: Path, prompts: list[list[int]]
) -> None:
    store = SlowStore()
    store.most = 8
    async with running(tiny, store=store) as verifier:
        reader = start(verifier, prompts[2], TOKEN, "s", 12)
        stored = await trailing(verifier, store, reader)
        await until(lambda: verifier.used == 0)  # the engine thread is done with it
        cancel = asyncio.create_task(verifier.cancel("s", keep=stored - 1, reason=FinishReason.STOP))
        await asyncio.sleep(0.05)
        store.most = 10**9
        assert await cancel
        await reader.task
        await until(lambda: not verifier.replica.writer.pending)
        record = await store.load("s")
        assert (record.tokens, record.finish_reason) == (
            tuple(reader.tokens[: stored - 1]),
            FinishReason.STOP,
        )
