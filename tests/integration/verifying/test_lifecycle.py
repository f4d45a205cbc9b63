"""Sessions come, end early, are taken up again; whatever happens, all that they held is freed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from outrider.core.errors import (
    InternalError,
    InvalidRequestError,
    SessionNotFoundError,
    StaleEpochError,
    UnavailableError,
)
from outrider.core.sessions import FinishReason
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import SessionFinished, SessionRequest, SessionStarted, SessionTokens
from tests.integration.verifying.harness import OFF, Verifier, request, running, sampled, until
from tests.integration.verifying.scripted import ScriptedDrafter, scripted


def guessing() -> ScriptedDrafter:
    rng = random.Random(1)
    return ScriptedDrafter(lambda held: [held.propose(rng.choices(range(512), k=held.wanted))])


async def leave_after(verifier: Verifier, wanted: SessionRequest, tokens: int, how: str) -> list[int]:
    """Read some tokens, then end the session one way or the other."""
    got: list[int] = []
    stream = verifier.stream(wanted)
    async for event in stream:
        if isinstance(event, SessionTokens):
            got += event.token_ids
        if len(got) >= tokens:
            break
    if how == "cancel":
        assert await verifier.cancel(wanted.session_id)
        rest = [event async for event in stream]
        assert isinstance(rest[-1], SessionFinished) and rest[-1].reason is FinishReason.CANCELLED
    await stream.aclose()
    return got


async def test_cancelling_at_random_rounds_returns_to_the_base_line(
    tiny: Path, prompts: list[list[int]]
) -> None:
    rng, drafter = random.Random(2), guessing()
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, max_sessions=8) as verifier,
    ):
        off = await verifier.generate(request(prompts[4], max_tokens=200, speculation=OFF))
        jobs = [
            leave_after(
                verifier,
                request(prompts[rng.randrange(8)], sampling=sampled(i), max_tokens=300),
                rng.randrange(0, 40),
                rng.choice(["cancel", "leave"]),
            )
            for i in range(40)
        ]
        whole = verifier.generate(request(prompts[4], max_tokens=200))
        results = await asyncio.gather(whole, *jobs)
        assert results[0].tokens == off.tokens  # the one that stayed was not disturbed
        await until(lambda: verifier.used == 0 and not drafter.held and not len(verifier.replica.streams))
        assert (await verifier.generate(request(prompts[4], max_tokens=200))).tokens == off.tokens


async def test_cancel_is_idempotent_and_keeps_what_was_delivered(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[2], max_tokens=400)
        stream = verifier.stream(wanted)
        got: list[int] = []
        while len(got) < 5:
            event = await anext(stream)
            if isinstance(event, SessionTokens):
                got += event.token_ids
        assert await verifier.cancel(wanted.session_id, keep=3, reason=FinishReason.STOP)
        assert verifier.used == 0
        last = [event async for event in stream][-1]
        assert isinstance(last, SessionFinished) and last.reason is FinishReason.STOP
        assert last.usage.completion_tokens == 3
        assert await verifier.cancel(wanted.session_id, keep=9)
        assert not await verifier.cancel("nobody")
        assert await verifier.replica.writer.flush(5.0)
        record = await verifier.store.load(wanted.session_id)
        assert list(record.tokens) == got[:3] and record.finish_reason is FinishReason.STOP


async def test_the_store_holds_exactly_what_was_streamed(tiny: Path, prompts: list[list[int]]) -> None:
    drafter = guessing()
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        wanted = request(prompts[2], sampling=sampled(4))
        reply = await verifier.generate(wanted)
        assert await verifier.replica.writer.flush(5.0)
        record = await verifier.store.load(wanted.session_id)
        assert list(record.tokens) == reply.tokens and record.finish_reason is FinishReason.LENGTH
        assert record.prompt == wanted.prompt and record.sampling == wanted.sampling


async def test_resuming_a_live_session_replays_and_replaces(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        full = (await verifier.generate(request(prompts[1], max_tokens=300))).tokens
        wanted = request(prompts[1], max_tokens=300)
        older = verifier.stream(wanted)
        seen = 0
        while seen < 6:
            event = await anext(older)
            seen += len(event.token_ids) if isinstance(event, SessionTokens) else 0
        newer = verifier.resume(wanted.session_id, 2)
        assert isinstance(await anext(newer), SessionStarted)
        with pytest.raises(StaleEpochError):
            async for _ in older:
                pass
        events = [event async for event in newer]
        assert isinstance(events[0], SessionTokens) and events[0].first_token == 2
        tokens = [t for event in events if isinstance(event, SessionTokens) for t in event.token_ids]
        assert tokens == full[2:]
        assert isinstance(events[-1], SessionFinished) and events[-1].usage.completion_tokens == 300


async def test_another_verifier_goes_on_from_the_store(tiny: Path, prompts: list[list[int]]) -> None:
    store, drafter = MemoryStore(), guessing()
    wanted = request(prompts[3], sampling=sampled(9), max_tokens=120)
    async with scripted(drafter) as config:
        async with running(tiny, store=store, drafters={"s": config}) as first:
            full = (await first.generate(request(prompts[3], sampling=sampled(9), max_tokens=120))).tokens
            seen: list[int] = []
            stream = first.stream(wanted)
            while len(seen) < 10:
                event = await anext(stream)
                seen += event.token_ids if isinstance(event, SessionTokens) else ()
            await first.replica.drain(0.0)  # it stops without letting anybody finish
            with pytest.raises(UnavailableError):
                async for event in stream:
                    seen += event.token_ids if isinstance(event, SessionTokens) else ()
        assert len(seen) < 120
        async with running(tiny, store=store, drafters={"s": config}) as second:
            events = [event async for event in second.resume(wanted.session_id, 4)]
            assert isinstance(events[0], SessionStarted) and events[0].epoch == 2
            tokens = [t for event in events if isinstance(event, SessionTokens) for t in event.token_ids]
            assert tokens == full[4:]
            again = [event async for event in second.resume(wanted.session_id, 0)]  # it has ended
            assert isinstance(again[1], SessionTokens) and list(again[1].token_ids) == full
            assert isinstance(again[-1], SessionFinished) and again[-1].reason is FinishReason.LENGTH


async def test_resume_of_nobody_or_past_the_end(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        with pytest.raises(SessionNotFoundError):
            await anext(verifier.resume("nobody", 0))
        wanted = request(prompts[2], max_tokens=4)
        await verifier.generate(wanted)
        assert await verifier.replica.writer.flush(5.0)
        with pytest.raises(InvalidRequestError):
            await anext(verifier.resume(wanted.session_id, 5))


async def test_a_session_claimed_elsewhere_stops_here(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[2], max_tokens=500)
        stream = verifier.stream(wanted)
        await anext(stream)
        await verifier.store.claim(wanted.session_id)
        with pytest.raises(StaleEpochError):
            async for _ in stream:
                pass
        await until(lambda: verifier.used == 0)
        assert (await verifier.generate(request(prompts[2]))).reason is FinishReason.LENGTH


async def test_draining_lets_sessions_finish_and_admits_nobody(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        running_one = asyncio.create_task(verifier.generate(request(prompts[2], max_tokens=200)))
        await until(lambda: bool(verifier.used))
        drained = asyncio.create_task(verifier.replica.drain(30.0))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError):
            await verifier.generate(request(prompts[2]))
        await drained
        assert len((await running_one).tokens) == 200


async def test_a_defect_in_the_engine_ends_all_streams_and_admits_nobody(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny) as verifier:

        def broken(items: object) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(verifier.engine, "step", broken)
        with pytest.raises(InternalError):
            await verifier.generate(request(prompts[2]))
        with pytest.raises(UnavailableError):
            await verifier.generate(request(prompts[2]))
