"""A session goes on at any verifier, behind any token, as if nothing had happened."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from outrider.core.errors import (
    InvalidRequestError,
    ProtocolError,
    SessionNotFoundError,
    StaleEpochError,
)
from outrider.core.params import Acceptance, GrammarKind, LogitEdits, SamplingParams, SpeculationParams
from outrider.core.sessions import FinishReason, SessionRecord
from outrider.sessions.memory import MemoryStore
from outrider.sessions.redis import RedisStore
from outrider.wire.messages import SessionRequest, SessionStarted, SessionTokens
from tests.integration.verifying.grammar_cases import KINDS, asking
from tests.integration.verifying.harness import (
    GREEDY,
    TIMEOUT_S,
    Reply,
    Verifier,
    request,
    running,
    sampled,
    until,
)
from tests.integration.verifying.scripted import ScriptedDrafter, scripted
from tests.servers import redis_server

COUNT = 10
TOKEN = SpeculationParams(acceptance=Acceptance.TOKEN)
BLOCK = SpeculationParams(acceptance=Acceptance.BLOCK)
COUPLED = SpeculationParams()
EDITED = sampled(
    7, edits=LogitEdits(min_tokens=COUNT, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2)
)


async def stored(verifier: Verifier, wanted: SessionRequest, tokens: list[int]) -> SessionRecord:
    """The session as its first owner left it in the store."""
    record = replace(verifier.replica.admission.record(wanted), tokens=tuple(tokens))
    await verifier.store.create(record)
    return record


def again(wanted: SessionRequest, name: str) -> SessionRequest:
    return replace(wanted, session_id=name)


@pytest.mark.parametrize(
    "sampling, how",
    [(GREEDY, COUPLED), (sampled(3), COUPLED), (EDITED, COUPLED), (sampled(3), TOKEN), (sampled(3), BLOCK)],
    ids=["greedy", "seeded", "edited", "token", "block"],
)
async def test_taken_over_behind_any_token_it_ends_as_if_undisturbed(
    tiny: Path, prompts: list[list[int]], sampling: SamplingParams, how: SpeculationParams
) -> None:
    """The rules "token" and "block" have no drafts here: then they too are a function of the seed."""
    async with running(tiny) as verifier:
        wanted = request(prompts[4], sampling=sampling, speculation=how, max_tokens=COUNT)
        full = await verifier.generate(wanted)
        for held in range(COUNT + 1):
            name = f"s-{held}"
            await stored(verifier, again(wanted, name), full.tokens[:held])
            from_token = held // 2
            reply = await verifier.resumed(name, from_token)
            assert reply.tokens == full.tokens[from_token:], held
            assert reply.finished is not None and full.finished is not None
            assert reply.reason is full.reason
            assert reply.finished.usage.completion_tokens == COUNT
            assert reply.finished.usage.prompt_tokens == len(prompts[4])
            assert await verifier.replica.writer.flush(TIMEOUT_S)
            record = await verifier.store.load(name)
            assert list(record.tokens) == full.tokens and record.finish_reason is FinishReason.LENGTH
            assert record.epoch == 2
        assert verifier.metric("outrider_sessions_moved_total", kind="claimed") == COUNT + 1
        assert verifier.used == 0


@pytest.mark.parametrize("lacks", [1, 3])
async def test_tokens_that_the_store_lacks_are_generated_again_and_not_sent(
    tiny: Path, prompts: list[list[int]], lacks: int
) -> None:
    drafter = ScriptedDrafter(lambda held: [held.propose([held.tokens[-1]] * held.wanted)])
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        wanted = request(prompts[4], sampling=sampled(5), max_tokens=COUNT)
        full = (await verifier.generate(wanted)).tokens
        for sent in range(lacks, COUNT + 1):
            name = f"s-{sent}"
            await stored(verifier, again(wanted, name), full[: sent - lacks])
            reply = await verifier.resumed(name, sent)
            assert reply.tokens == full[sent:] and reply.reason is FinishReason.LENGTH
            assert await verifier.replica.writer.flush(TIMEOUT_S)
            assert list((await verifier.store.load(name)).tokens) == full


@pytest.mark.parametrize("how", [COUPLED, TOKEN, BLOCK], ids=["coupled", "token", "block"])
async def test_tokens_that_the_store_lacks_are_taken_from_the_caller(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[4], sampling=sampled(5), speculation=how, max_tokens=COUNT)
        full = (await verifier.generate(wanted)).tokens
        # What the caller has counts, even where nobody would generate it.
        known = [*full[:3], (full[3] + 1) % 512, *full[4:7]]
        await stored(verifier, again(wanted, "s"), full[:3])
        reply = await verifier.resumed("s", 7, known=known)
        assert len(reply.tokens) == COUNT - 7
        assert await verifier.replica.writer.flush(TIMEOUT_S)
        assert list((await verifier.store.load("s")).tokens) == known + reply.tokens
        whole = await verifier.resumed("s", 0)  # it is over
        assert whole.tokens == known + reply.tokens and whole.reason is FinishReason.LENGTH


@pytest.mark.parametrize("how", [TOKEN, BLOCK])
async def test_drawn_tokens_that_the_store_lacks_and_nobody_brings_cannot_be_had_again(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    async with running(tiny) as verifier:
        await stored(
            verifier, request(prompts[2], sampling=sampled(1), speculation=how, session_id="s"), [5, 6]
        )
        with pytest.raises(InvalidRequestError, match="others would be generated"):
            await verifier.resumed("s", 3)
        assert (await verifier.store.load("s")).epoch == 1


async def test_a_caller_who_knows_other_tokens_gets_none(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        await stored(verifier, request(prompts[2], session_id="s"), [5, 6, 7])
        for known in ([5, 9], [5, 6, 9, 8]):
            with pytest.raises(ProtocolError):
                await verifier.resumed("s", len(known), known=known)
        with pytest.raises(InvalidRequestError):
            await verifier.resumed("s", 4, known=[5, 6, 7, 512])  # not of this vocabulary
        assert (await verifier.store.load("s")).epoch == 1


async def test_nothing_past_the_end_can_be_had(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[2], max_tokens=COUNT)
        full = (await verifier.generate(wanted)).tokens
        with pytest.raises(InvalidRequestError):  # it has ended
            await verifier.resumed(wanted.session_id, COUNT + 1)
        await stored(verifier, again(wanted, "long"), full[:2])
        with pytest.raises(InvalidRequestError):  # it will have ended before
            await verifier.resumed("long", COUNT + 1)
        stop = next(i for i in range(4, COUNT) if full[i] not in full[:i])
        short = request(prompts[2], max_tokens=COUNT, stop=[full[stop]], session_id="short")
        await stored(verifier, short, full[:2])
        with pytest.raises(InvalidRequestError, match=f"has {stop} tokens"):
            await verifier.resumed("short", stop + 1)
        assert verifier.used == 0


@pytest.mark.parametrize("how", [COUPLED, TOKEN], ids=["coupled", "token"])
async def test_the_stop_token_that_ended_a_session_is_told_again(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    with redis_server() as server:
        store = RedisStore(server.url)
        async with running(tiny, store=store) as verifier:
            sampling = sampled(5)
            full = (await verifier.generate(request(prompts[4], sampling=sampling, speculation=how))).tokens
            stop = next(i for i in range(4, len(full)) if full[i] not in full[:i])
            wanted = request(prompts[4], sampling=sampling, speculation=how, stop=[full[stop]])
            reply = await verifier.generate(wanted)
            assert reply.finished is not None and reply.finished.stop_token_id == full[stop]
            assert await verifier.replica.writer.flush(TIMEOUT_S)
            for from_token in (0, stop):
                told = await verifier.resumed(wanted.session_id, from_token)
                assert told.tokens == full[from_token:stop]
                assert told.finished is not None and told.finished.stop_token_id == full[stop]
        await store.close()


async def test_another_tenant_finds_nothing(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        wanted = replace(request(prompts[2], session_id="s", max_tokens=400), tenant="a")
        stream = verifier.stream(wanted)
        assert isinstance(await anext(stream), SessionStarted)
        for tenant in ("b", ""):
            with pytest.raises(SessionNotFoundError):  # while it runs
                await verifier.resumed("s", 0, tenant=tenant)
        assert await verifier.cancel("s", park=True)
        for tenant in ("b", ""):
            with pytest.raises(SessionNotFoundError):  # from the store
                await verifier.resumed("s", 0, tenant=tenant)
        assert (await verifier.store.load("s")).epoch == 1
        assert len((await verifier.resumed("s", 0, tenant="a")).tokens) == 400


async def test_who_does_not_know_what_it_was_asked_for_by_does_not_get_it(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny) as verifier:
        wanted = replace(request(prompts[2], session_id="s", max_tokens=400), presentation=b"its note")
        stream = verifier.stream(wanted)
        assert isinstance(await anext(stream), SessionStarted)
        with pytest.raises(InvalidRequestError, match="mark"):  # while it runs
            await verifier.resumed("s", 0, mark=b"other")
        reply = Reply()
        async for event in stream:  # its reader has lost nothing
            reply.take(event)
        assert len(reply.tokens) == 400
        with pytest.raises(InvalidRequestError, match="mark"):  # from the store
            await verifier.resumed("s", 0, mark=b"other")
        assert (await verifier.store.load("s")).epoch == 1
        assert (await verifier.resumed("s", 0, mark=b"note")).tokens == reply.tokens


async def test_the_stream_says_what_its_gateway_noted(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        wanted = replace(request(prompts[4], sampling=sampled(9)), presentation=b"\x00note", session_id="s")
        assert await anext(verifier.stream(wanted)) == SessionStarted(9, 1, b"\x00note", len(prompts[4]))
        assert await anext(verifier.resume("s", 0)) == SessionStarted(9, 1, b"\x00note", len(prompts[4]))
        await verifier.cancel("s", park=True)
        assert await anext(verifier.resume("s", 0)) == SessionStarted(9, 2, b"\x00note", len(prompts[4]))


@pytest.mark.parametrize("kind", [GrammarKind.CHOICE, GrammarKind.REGEX, GrammarKind.GRAMMAR])
async def test_a_grammar_is_followed_on_behind_any_token(tiny: Path, kind: GrammarKind) -> None:
    grammar, fits = next((grammar, fits) for grammar, fits in KINDS if grammar.kind is kind)
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    async with running(tiny) as verifier:
        sampling = asking(grammar, temperature=1.0, seed=5)
        wanted = request([5, 6], sampling=sampling, max_tokens=64, ignore_eos=False)
        full = await verifier.generate(wanted)
        assert full.reason is FinishReason.STOP and fits(tokenizer.decode(full.tokens))
        for held in range(len(full.tokens) + 1):
            await stored(verifier, again(wanted, f"s-{held}"), full.tokens[:held])
            reply = await verifier.resumed(f"s-{held}", 0)
            assert reply.tokens == full.tokens and reply.reason is FinishReason.STOP
            assert reply.finished is not None and full.finished is not None
            assert reply.finished.stop_token_id == full.finished.stop_token_id


async def test_two_verifiers_that_claim_one_session_leave_it_to_one(
    tiny: Path, prompts: list[list[int]]
) -> None:
    rng = random.Random(3)
    with redis_server() as server:
        one, two = RedisStore(server.url), RedisStore(server.url)
        async with running(tiny, store=one) as first, running(tiny, store=two) as second:
            wanted = request(prompts[4], sampling=sampled(5), max_tokens=300)
            full = (await first.generate(wanted)).tokens
            for turn in range(4):
                name = f"s-{turn}"
                await stored(first, again(wanted, name), full[: rng.randrange(200)])
                both = await asyncio.gather(
                    first.resumed(name, 0), second.resumed(name, 0), return_exceptions=True
                )
                lost = [reply for reply in both if isinstance(reply, BaseException)]
                won = [reply for reply in both if not isinstance(reply, BaseException)]
                assert len(won) == 1 and len(lost) == 1 and isinstance(lost[0], StaleEpochError)
                assert won[0].tokens == full
                assert await first.replica.writer.flush(TIMEOUT_S)
                assert await second.replica.writer.flush(TIMEOUT_S)
                record = await one.load(name)
                assert list(record.tokens) == full and record.finish_reason is FinishReason.LENGTH
            await until(lambda: first.used == second.used == 0)
        await one.close()
        await two.close()


async def test_a_verifier_that_lost_a_session_unknowingly_takes_it_back_properly(
    tiny: Path, prompts: list[list[int]]
) -> None:
    """It held the session when it was claimed elsewhere, and is asked for it before it writes again."""
    store = MemoryStore()
    async with running(tiny, store=store, max_sessions=1) as first:
        full = (await first.generate(request(prompts[4], max_tokens=400))).tokens
        ahead = request(prompts[1], max_tokens=490)
        blocker = first.stream(ahead)
        await anext(blocker)
        await until(lambda: bool(first.used))
        wanted = request(prompts[4], max_tokens=400, session_id="s")
        waiting = first.stream(wanted)  # it writes nothing before its turn
        await anext(waiting)
        async with running(tiny, store=store) as second:
            stream = second.resume("s", 0)
            got: list[int] = []
            while len(got) < 20:
                event = await anext(stream)
                got += event.token_ids if isinstance(event, SessionTokens) else ()
            assert await second.cancel("s", park=True)
            await stream.aclose()
        rest = asyncio.create_task(first.resumed("s", len(got), known=got))
        with pytest.raises(StaleEpochError):
            async for _ in waiting:
                pass
        assert await first.cancel(ahead.session_id)
        assert got + (await rest).tokens == full
        assert await first.replica.writer.flush(TIMEOUT_S)
        record = await store.load("s")
        assert list(record.tokens) == full and record.epoch == 3
        assert first.metric("outrider_sessions_moved_total", kind="fenced") == 1
