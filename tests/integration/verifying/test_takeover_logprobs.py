"""Whoever asked for log-probabilities gets them with every token, whichever verifier tells it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.params import LogprobParams, SpeculationParams
from outrider.core.sessions import FinishReason
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import SessionTokens
from tests.integration.verifying.harness import TIMEOUT_S, Reply, request, running, sampled, until
from tests.integration.verifying.test_takeover import BLOCK, COUNT, COUPLED, TOKEN, again, stored

ASKED = LogprobParams(3, 2)


def same(reply: Reply, full: Reply, from_token: int) -> None:
    """Bit for bit, from a token on."""
    assert reply.tokens == full.tokens[from_token:]
    assert reply.logprobs == full.logprobs[from_token:]
    assert reply.prompt_logprobs == ([] if from_token else full.prompt_logprobs)
    assert reply.reason is full.reason


@pytest.mark.parametrize("how", [COUPLED, TOKEN, BLOCK], ids=["coupled", "token", "block"])
@pytest.mark.parametrize("chunk", [16, 256])
async def test_after_a_takeover_behind_any_token(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams, chunk: int
) -> None:
    async with running(tiny, prefill_chunk=chunk) as verifier:
        wanted = request(prompts[5], sampling=sampled(5), speculation=how, max_tokens=COUNT, logprobs=ASKED)
        full = await verifier.generate(wanted)
        assert len(full.logprobs) == COUNT and len(full.prompt_logprobs) == len(prompts[5]) - 1
        for held in range(COUNT + 1):
            for from_token in {0, held // 2, held}:
                name = f"s-{held}-{from_token}"
                await stored(verifier, again(wanted, name), full.tokens[:held])
                same(await verifier.resumed(name, from_token), full, from_token)
                assert await verifier.replica.writer.flush(TIMEOUT_S)
                record = await verifier.store.load(name)
                assert list(record.tokens) == full.tokens and record.finish_reason is FinishReason.LENGTH
        assert verifier.used == 0


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.CANCELLED])
async def test_of_a_session_that_has_ended(
    tiny: Path, prompts: list[list[int]], reason: FinishReason
) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[5], sampling=sampled(5), max_tokens=COUNT, logprobs=ASKED)
        full = await verifier.generate(wanted)
        record = replace(
            verifier.replica.admission.record(again(wanted, "s")),
            tokens=tuple(full.tokens[:7]),
            finish_reason=reason,
        )
        await verifier.store.create(record)
        for from_token in range(8):
            reply = await verifier.resumed("s", from_token)
            assert reply.tokens == full.tokens[from_token:7] and reply.reason is reason
            assert reply.logprobs == full.logprobs[from_token:7]
            assert reply.prompt_logprobs == ([] if from_token else full.prompt_logprobs)
            assert reply.finished is not None and reply.finished.usage.completion_tokens == 7
        assert await verifier.store.load("s") == record  # it was read, and not claimed
        assert verifier.used == 0


async def test_tokens_of_the_caller_are_not_told_of_and_later_ones_are(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny) as verifier:
        wanted = request(prompts[5], sampling=sampled(5), max_tokens=COUNT, logprobs=ASKED)
        full = await verifier.generate(wanted)
        await stored(verifier, again(wanted, "s"), full.tokens[:2])
        same(await verifier.resumed("s", 6, known=full.tokens[:6]), full, 6)
        restored = replace(again(wanted, "t"), generated=tuple(full.tokens[:6]), epoch=2)
        same(await verifier.generate(restored), full, 6)


async def test_a_client_that_wants_more_than_was_told_here_gets_it(
    tiny: Path, prompts: list[list[int]]
) -> None:
    """The session was taken over behind token 5, and runs; then somebody wants it from the beginning."""
    async with running(tiny) as verifier:
        wanted = request(prompts[5], sampling=sampled(5), max_tokens=300, logprobs=ASKED)
        full = await verifier.generate(wanted)
        await stored(verifier, again(wanted, "s"), full.tokens[:5])
        stream = verifier.resume("s", 5)
        while not isinstance(await anext(stream), SessionTokens):
            pass
        same(await verifier.resumed("s", 0), full, 0)
        await stream.aclose()
        await until(lambda: verifier.used == 0)


async def test_a_session_that_gives_way_in_between_is_told_of_once(
    tiny: Path, prompts: list[list[int]]
) -> None:
    store = MemoryStore()
    async with running(tiny, store=store) as whole:
        wanted = [request(prompts[6], sampling=sampled(i), max_tokens=100, logprobs=ASKED) for i in range(3)]
        full = [await whole.generate(one) for one in wanted]
    async with running(tiny, pool_tokens=256, prefill_chunk=16) as small:
        for index, one in enumerate(wanted):
            await stored(small, again(one, f"s-{index}"), full[index].tokens[:60])
        replies = [small.resumed(f"s-{index}", 10) for index in range(3)]
        for reply, expected in zip(await asyncio.gather(*replies), full, strict=True):
            same(reply, expected, 10)
        assert small.metric("outrider_num_preemptions_total") > 0
