"""A drafter that lies costs time, never correctness, and never another session."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.conftest import HOSTILE, Expect
from tests.faults.hostile import Hostile, serving
from tests.stack import Stack, total, wait_until
from tests.traffic import ask, connected, generate

ROUNDS = {"max_tokens": 150}


def address(stack: Stack) -> str:
    return f"127.0.0.1:{stack.config['drafters'][HOSTILE]['port']}"


def dropped(stack: Stack) -> dict[str, float]:
    """Proposals of the hostile drafter that were dropped, by reason."""
    return {
        key.partition("reason=")[2].rstrip("}").partition(",")[0]: value
        for key, value in stack.metrics("verifier").items()
        if key.startswith("outrider_proposals_dropped_total") and f"drafter={HOSTILE}" in key
    }


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_hostile_drafter(stack: Stack, expect: Expect, temperature: float) -> None:
    seeds = range(3)
    expected = [await expect(**ROUNDS, temperature=temperature, seed=seed) for seed in seeds]
    hostile = Hostile(seed=int(temperature) + 1)
    async with serving(hostile, address(stack)), connected(stack.grpc) as stub:
        for _ in range(100):  # on a busy machine the verifier rests it more
            requests = [
                ask(drafter=name, **ROUNDS, temperature=temperature, seed=seed)
                for seed in seeds
                for name in (HOSTILE, "twin")
            ]
            # It even learns its neighbours' ids, which no drafter should.
            meet = lambda seen: hostile.victims.add(seen.generation_id)  # noqa: E731
            answers = await asyncio.gather(*(generate(stub, one, on_delta=meet) for one in requests))
            for index, got in enumerate(answers):
                assert got.token_ids == expected[index // 2]
            # The neighbours' proposals are all the target's own choice: none may be lost or replaced.
            for got in answers[1::2]:
                assert got.stats.accepted_tokens == got.stats.draft_tokens
                assert got.stats.drafts > 0
            if set(hostile.played) == set(hostile.tricks):
                break
    assert set(hostile.played) == set(hostile.tricks), "not every trick was played"
    assert hostile.streams > 1, "the verifier came back after it was hung up on"


async def test_what_a_hostile_drafter_sends_is_counted(stack: Stack, expect: Expect) -> None:
    before = dropped(stack)
    hostile = Hostile()
    wanted = ("stale base", "future base", "twice", "old epoch", "oversized", "foreign", "twins")
    hostile.tricks = {name: hostile.tricks[name] for name in wanted}
    async with serving(hostile, address(stack)), connected(stack.grpc) as stub:
        for _ in range(50):
            requests = [ask(drafter=HOSTILE, **ROUNDS, seed=seed) for seed in range(2)]
            answers = await asyncio.gather(*(generate(stub, request) for request in requests))
            for seed, got in enumerate(answers):
                assert got.token_ids == await expect(**ROUNDS, seed=seed)
            if set(hostile.played) == set(wanted):
                break
    grown = {reason for reason, count in dropped(stack).items() if count > before.get(reason, 0)}
    assert len(grown) >= 4, grown


async def test_sessions_of_a_hostile_drafter_are_freed(stack: Stack) -> None:
    async with serving(Hostile(seed=5), address(stack)), connected(stack.grpc) as stub:
        await asyncio.gather(*(generate(stub, ask(drafter=HOSTILE, seed=seed)) for seed in range(8)))
    wait_until(
        lambda: total(stack.metrics("verifier"), "outrider_num_requests_running") == 0,
        "no session is running",
    )
