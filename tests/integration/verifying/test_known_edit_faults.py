"""Faults of other servers where speculation met sampling parameters, each as what must hold here.

Every test runs with a drafter that proposes what the parameters exclude, and with one that is always right.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.params import LogitEdits, LogprobParams, SamplingParams, SpeculationParams
from outrider.core.rounds import Proposal
from outrider.core.trees import TokenTree
from tests.integration.verifying.harness import OFF, Verifier, real_drafter, request, running
from tests.integration.verifying.scripted import Held, ScriptedDrafter, scripted

Prompts = list[list[int]]
pytestmark = pytest.mark.usefixtures("patient")


def insisting(*token_ids: int) -> ScriptedDrafter:
    """Proposes these tokens again and again, as a tree: each of them below each, and as a chain."""

    def script(held: Held) -> Iterator[Proposal]:
        count = len(token_ids)
        ids = [*token_ids, *(token_ids * count)]
        parents = [-1] * count + [parent for parent in range(count) for _ in token_ids]
        yield held.propose((), tree=TokenTree(tuple(ids), tuple(parents)).truncated(held.wanted))

    return ScriptedDrafter(script)


@asynccontextmanager
async def verifier_with(tiny: Path, *proposed: int, **own: Any) -> AsyncIterator[Verifier]:
    """A verifier with two drafters: `stubborn`, which proposes these, and `twin`."""
    async with (
        scripted(insisting(*proposed)) as stubborn,
        real_drafter(model=str(tiny)) as twin,
        running(tiny, drafters={"stubborn": stubborn, "twin": twin}, **own) as verifier,
    ):
        yield verifier


async def with_each(
    verifier: Verifier, prompt: Sequence[int], sampling: SamplingParams, max_tokens: int = 24
) -> list[int]:
    """The output, the same without speculation and with either drafter."""

    def wanted(**speculation: Any) -> Any:
        return request(
            prompt, sampling=sampling, max_tokens=max_tokens, speculation=SpeculationParams(**speculation)
        )

    off = (await verifier.generate(wanted(enabled=False))).tokens
    for name in ("stubborn", "twin"):
        reply = await verifier.generate(wanted(drafter=name))
        assert reply.tokens == off
        assert reply.finished is not None and reply.finished.speculation.draft_tokens > 0
    return off


def edited(temperature: float = 0.0, **edits: Any) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=3, edits=LogitEdits(**edits))


async def test_frequency_penalty_changes_the_output_as_without_speculation(
    tiny: Path, prompts: Prompts
) -> None:
    hello = [40, 41, 40, 41, 40, 41]
    async with verifier_with(tiny, 40, 41) as verifier:
        pushed = await with_each(verifier, hello, edited(frequency_penalty=-2.0), 8)
        held_back = await with_each(verifier, hello, edited(frequency_penalty=2.0), 8)
    assert pushed != held_back


async def test_min_p_holds_at_accepted_and_at_bonus_positions(tiny: Path, prompts: Prompts) -> None:
    sampling = SamplingParams(temperature=1.0, seed=9, min_p=0.9)
    accepted = bonus = 0
    async with verifier_with(tiny, 17, 18) as verifier:
        for name in ("stubborn", "twin"):
            one = request(
                prompts[4], sampling=sampling, max_tokens=200, speculation=SpeculationParams(drafter=name)
            )
            reply = await verifier.generate(replace(one, logprobs=LogprobParams(top=1)))
            told = [entry for run in reply.runs for entry in run.logprobs]
            assert [entry.token_id for entry in told] == reply.tokens
            assert all(entry.logprob >= entry.top[0][1] + math.log(0.9) - 1e-6 for entry in told)
            accepted += sum(run.accepted for run in reply.runs)
            bonus += sum(len(run.token_ids) - run.accepted for run in reply.runs)
    assert accepted > 50 and bonus > 50


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_bias_of_minus_100_bans_and_one_of_100_forces(
    tiny: Path, prompts: Prompts, temperature: float
) -> None:
    async with verifier_with(tiny, 30, 31) as verifier:
        forced = await with_each(verifier, prompts[3], edited(temperature, logit_bias=((30, 100.0),)))
        assert forced == [30] * 24
        favourite = (await with_each(verifier, prompts[3], edited(temperature)))[0]
        banned = await with_each(verifier, prompts[3], edited(temperature, logit_bias=((favourite, -100.0),)))
        assert favourite not in banned


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_banned_set_appears_nowhere_with_any_drafter(
    tiny: Path, prompts: Prompts, temperature: float
) -> None:
    async with verifier_with(tiny, 50, 51, 52) as verifier:
        free = await with_each(verifier, prompts[5], edited(temperature), 60)
        banned = {50, 51, 52, *free}
        allowed = tuple(token for token in range(512) if token not in banned)
        kept = await with_each(verifier, prompts[5], edited(temperature, allowed_token_ids=allowed), 60)
        assert not banned & set(kept)
        words = tuple((token,) for token in sorted(banned))
        assert kept == await with_each(verifier, prompts[5], edited(temperature, bad_words=words), 60)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_bad_words_never_appear_also_across_rounds(
    tiny: Path, prompts: Prompts, temperature: float
) -> None:
    """A word of several tokens, its first ones forced: rounds end at each place within it."""
    towards = {"logit_bias": ((60, 60.0), (61, 60.0), (62, 60.0))}
    words = ((60, 61), (61, 62, 60), (62, 62, 62))

    def holds(tokens: Sequence[int], word: Sequence[int]) -> bool:
        return any(tuple(tokens[i : i + len(word)]) == tuple(word) for i in range(len(tokens)))

    async with verifier_with(tiny, 60, 61, 62) as verifier:
        free = await with_each(verifier, prompts[2], edited(temperature, **towards), 80)
        kept = await with_each(verifier, prompts[2], edited(temperature, bad_words=words, **towards), 80)
    assert set(free) | set(kept) <= {60, 61, 62}
    assert temperature == 0.0 or any(holds(free, word) for word in words)
    assert not any(holds(kept, word) for word in words)


async def test_penalties_are_of_this_round_in_a_batch_that_runs_ahead(tiny: Path, prompts: Prompts) -> None:
    """Counts are never those of a round before, nor of tokens that were only drafted."""
    async with verifier_with(tiny, 70, 71) as verifier:
        kinds = [edited(1.0, frequency_penalty=2.0, presence_penalty=p / 4 - 1) for p in range(8)]
        off = [
            request(prompt, sampling=kind, max_tokens=60, speculation=OFF)
            for prompt, kind in zip(prompts, kinds, strict=True)
        ]
        want = await verifier.generate_all(off)
        for name in ("stubborn", "twin"):
            on = [
                request(prompt, sampling=kind, max_tokens=60, speculation=SpeculationParams(drafter=name))
                for prompt, kind in zip(prompts, kinds, strict=True)
            ]
            assert await verifier.generate_all(on) == want


async def test_repetition_penalty_is_answered_and_the_server_serves_on(tiny: Path, prompts: Prompts) -> None:
    async with verifier_with(tiny, 80) as verifier:
        before = await with_each(verifier, prompts[6], edited())
        first = await with_each(verifier, prompts[6], edited(repetition_penalty=1.3), 40)
        assert len(first) == 40
        assert await with_each(verifier, prompts[6], edited()) == before
