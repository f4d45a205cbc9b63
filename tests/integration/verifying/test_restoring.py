"""Generate with the tokens that a client has: a session that the store has lost goes on behind them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.errors import (
    InvalidRequestError,
    ProtocolError,
    SessionExistsError,
    StaleEpochError,
    StoreUnavailableError,
)
from outrider.core.params import SpeculationParams
from outrider.core.sessions import FinishReason, SessionRecord
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import SessionRequest, SessionStarted
from tests.integration.verifying.harness import TIMEOUT_S, request, running, sampled
from tests.integration.verifying.test_leaving import moved, read, rest
from tests.integration.verifying.test_takeover import BLOCK, COUNT, COUPLED, TOKEN, stored


class AwayStore(MemoryStore):
    """Nothing but appends works while it is away."""

    away = False

    async def create(self, record: SessionRecord) -> None:
        self._check()
        await super().create(record)

    async def restore(self, record: SessionRecord) -> None:
        self._check()
        await super().restore(record)

    async def ping(self) -> None:
        self._check()

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailableError("away")


def restoring(wanted: SessionRequest, name: str, tokens: list[int], epoch: int = 2) -> SessionRequest:
    return replace(wanted, session_id=name, generated=tuple(tokens), epoch=epoch)


@pytest.mark.parametrize("how", [COUPLED, TOKEN, BLOCK], ids=["coupled", "token", "block"])
async def test_restored_behind_any_token_it_ends_as_if_undisturbed(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[4], sampling=sampled(5), speculation=how, max_tokens=COUNT)
        full = (await verifier.generate(wanted)).tokens
        for held in range(COUNT + 1):
            name = f"s-{held}"
            reply = await verifier.generate(restoring(wanted, name, full[:held], 3))
            assert full[:held] + reply.tokens == full and reply.reason is FinishReason.LENGTH
            assert not reply.runs or reply.runs[0].first_token == held
            assert reply.finished is not None and reply.finished.usage.completion_tokens == COUNT
            assert await verifier.replica.writer.flush(TIMEOUT_S)
            record = await verifier.store.load(name)
            assert list(record.tokens) == full and record.epoch == 3
            assert record.finish_reason is FinishReason.LENGTH
        assert moved(verifier, "restored") == COUNT + 1 and verifier.used == 0


@pytest.mark.parametrize("how", [COUPLED, TOKEN], ids=["coupled", "token"])
async def test_what_the_store_has_more_of_is_told_and_kept(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[4], sampling=sampled(5), speculation=how, max_tokens=COUNT)
        full = (await verifier.generate(wanted)).tokens
        await stored(verifier, replace(wanted, session_id="s"), full[:6])
        reply = await verifier.generate(restoring(wanted, "s", full[:2]))
        assert reply.tokens == full[2:]
        with pytest.raises(ProtocolError):  # it has ended, and others know how
            await verifier.generate(restoring(wanted, "s", full[:2], 9))


async def test_an_old_epoch_or_another_session_is_refused(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[4], sampling=sampled(5), max_tokens=COUNT)
        await stored(verifier, replace(wanted, session_id="s"), [5])
        assert (await verifier.store.claim("s")).epoch == 2
        with pytest.raises(StaleEpochError):
            await verifier.generate(restoring(wanted, "s", [5], 2))
        with pytest.raises(StaleEpochError):
            await verifier.generate(restoring(replace(wanted, prompt=(9,)), "s", [5], 3))
        with pytest.raises(StaleEpochError):
            await verifier.generate(restoring(replace(wanted, tenant="b"), "s", [5], 3))
        held = await verifier.store.load("s")
        assert (held.epoch, held.tokens) == (2, (5,))


async def test_what_a_client_has_stands_above_what_an_older_owner_wrote(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[4], sampling=sampled(5), max_tokens=COUNT)
        await stored(verifier, replace(wanted, session_id="s"), [5, 8])
        await verifier.generate(restoring(wanted, "s", [6], 2))
        held = await verifier.store.load("s")
        assert (held.epoch, held.tokens[0], len(held.tokens)) == (2, 6, COUNT)


@pytest.mark.parametrize("tokens", [[512], list(range(3, 3 + COUNT + 1))], ids=["vocabulary", "length"])
async def test_tokens_that_cannot_be_of_the_session_are_refused(
    tiny: Path, prompts: list[list[int]], tokens: list[int]
) -> None:
    async with running(tiny) as verifier:
        with pytest.raises(InvalidRequestError) as caught:
            await verifier.generate(restoring(request(prompts[4], max_tokens=COUNT), "s", tokens))
        assert caught.value.field == "generated"


async def test_restored_without_its_length_it_is_refused_as_it_may_have_had_another_one_elsewhere(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny) as verifier:
        wanted = restoring(request(prompts[4], max_tokens=0), "s", [7])
        with pytest.raises(InvalidRequestError, match="max_tokens"):
            await read(verifier.stream(wanted), 1)
        assert verifier.used == 0


@pytest.mark.parametrize("how", [COUPLED, TOKEN], ids=["coupled", "token"])
async def test_while_the_store_is_away_it_is_restored_all_the_same(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    store = AwayStore()
    async with running(tiny, store=store) as verifier:
        wanted = request(prompts[4], sampling=sampled(5), speculation=how, max_tokens=COUNT)
        full = (await verifier.generate(wanted)).tokens
        store.away = True
        task = asyncio.create_task(verifier.generate(restoring(wanted, "s", full[:4])))
        if how is COUPLED:
            assert (await task).tokens == full[4:]
        else:  # what is drawn has to be stored before it is told
            await asyncio.wait([task], timeout=0.3)
            assert not task.done()
        store.away = False
        assert (await task).tokens == full[4:]
        assert await verifier.replica.writer.flush(TIMEOUT_S)
        record = await store.load("s")
        assert list(record.tokens) == full and record.epoch == 2


async def test_a_session_that_runs_here_with_an_older_epoch_gives_way(
    tiny: Path, prompts: list[list[int]]
) -> None:
    """A verifier of its own store, that its gateway had given up: nothing else would tell it."""
    async with running(tiny) as verifier:
        wanted = request(prompts[4], sampling=sampled(5), max_tokens=400, session_id="s")
        full = (await verifier.generate(replace(wanted, session_id="full"))).tokens
        older = verifier.stream(wanted)
        got = await read(older, 3)
        with pytest.raises(StaleEpochError):
            await verifier.generate(restoring(wanted, "s", got, 1))
        with pytest.raises(SessionExistsError):
            await verifier.generate(restoring(replace(wanted, tenant="b"), "s", got, 5))
        newer = verifier.stream(restoring(wanted, "s", got, 5))
        first = await anext(newer)
        assert isinstance(first, SessionStarted) and first.epoch == 5
        with pytest.raises(StaleEpochError):
            await rest(older, [])
        await rest(newer, got)
        assert got == full and (await verifier.store.load("s")).epoch == 5
