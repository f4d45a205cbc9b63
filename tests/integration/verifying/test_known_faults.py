"""Faults that users met in other servers of speculative decoding, each as what must hold here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.core.params import SamplingParams, SpeculationParams
from tests.integration.verifying.harness import OFF, Verifier, real_drafter, request, running, sampled
from tests.integration.verifying.scripted import ScriptedDrafter, knowing, scripted
from tests.tiny_models import make_tiny

Prompts = list[list[int]]


async def off(verifier: Verifier, prompt: list[int], **changes: object) -> list[int]:
    """The same request with speculation turned off."""
    return (await verifier.generate(request(prompt, speculation=OFF, **changes))).tokens  # type: ignore[arg-type]


async def test_a_seeded_request_repeats_alone_and_under_load(tiny: Path, prompts: Prompts) -> None:
    hot = SamplingParams(temperature=2.0, seed=42)
    async with real_drafter(model=str(tiny)) as twin, running(tiny, drafters={"d": twin}) as verifier:
        want = await off(verifier, prompts[3], sampling=hot, max_tokens=10)
        for _ in range(5):
            assert (await verifier.generate(request(prompts[3], sampling=hot, max_tokens=10))).tokens == want
        load = [request(prompts[i % 8], sampling=sampled(i), max_tokens=60) for i in range(12)]
        repeats = [request(prompts[3], sampling=hot, max_tokens=10) for _ in range(5)]
        got = await verifier.generate_all([*load, *repeats])
        assert got[len(load) :] == [want] * 5


async def test_different_parameters_in_one_batch_do_not_mix(tiny: Path, prompts: Prompts) -> None:
    kinds = (
        SamplingParams(temperature=0.0),
        sampled(1),
        sampled(2, top_k=5),
        sampled(3, top_p=0.5),
        sampled(4, min_p=0.2),
        SamplingParams(temperature=3.0, seed=2**64 - 1),
        sampled(6, top_k=40, top_p=0.9, min_p=0.01),
    )
    async with real_drafter(model=str(tiny)) as twin, running(tiny, drafters={"d": twin}) as verifier:
        want = [await off(verifier, prompts[4], sampling=kind, max_tokens=40) for kind in kinds]
        wanted = [request(prompts[4], sampling=kind, max_tokens=40) for kind in kinds]
        assert await verifier.generate_all(wanted) == want


@pytest.mark.parametrize("sampling", [sampled(5), SamplingParams(temperature=0.0)])
async def test_a_text_stopped_in_mid_run_goes_on_as_without_speculation(
    tiny: Path, prompts: Prompts, sampling: SamplingParams
) -> None:
    prompt = prompts[6]
    async with real_drafter(model=str(tiny)) as twin, running(tiny, drafters={"d": twin}) as verifier:
        want = await off(verifier, prompt, sampling=sampling, max_tokens=60)
        cut = next(index for index in range(20, 60) if want[index] not in want[:index])
        first = await verifier.generate(request(prompt, sampling=sampling, max_tokens=60, stop=[want[cut]]))
        assert first.tokens == want[:cut]
        so_far = [*prompt, *first.tokens]  # its KV is taken from the prefix cache, where full blocks are
        rest = await verifier.generate(request(so_far, sampling=sampling, max_tokens=60 - cut))
        assert rest.tokens == want[cut:]


async def test_preempted_with_a_draft_on_its_way(tiny: Path, prompts: Prompts, patient: None) -> None:
    answers: dict[tuple[int, ...], list[int]] = {}
    drafter = ScriptedDrafter(knowing(answers, lambda length, right: right))
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"d": config}, pool_tokens=512, prefix_cache=False) as verifier,
    ):
        some = [prompts[5], prompts[6], prompts[4]]
        for prompt in some:
            answers[tuple(prompt)] = await off(verifier, prompt, sampling=sampled(8), max_tokens=240)
        wanted = [request(prompt, sampling=sampled(8), max_tokens=240) for prompt in some]
        got = await verifier.generate_all(wanted)
        assert got == [answers[tuple(prompt)] for prompt in some]
        assert verifier.metric("outrider_num_preemptions_total") > 0
        assert verifier.used == 0


async def test_alternating_prompts_on_one_slot_are_drafted_as_fresh_ones(
    tiny: Path, prompts: Prompts, patient: None
) -> None:
    async with (
        real_drafter(model=str(tiny), max_sessions=1) as twin,
        running(tiny, drafters={"d": twin}) as verifier,
    ):
        for turn in range(6):
            reply = await verifier.generate(
                request(prompts[5 + turn % 2], sampling=sampled(3), max_tokens=30)
            )
            assert reply.finished is not None
            stats = reply.finished.speculation
            assert stats.draft_tokens == stats.accepted_tokens > 0  # the twin is never wrong


async def test_rounds_that_accept_nothing_bring_one_token_each(
    tiny: Path, prompts: Prompts, patient: None
) -> None:
    answers: dict[tuple[int, ...], list[int]] = {}
    wrong = ScriptedDrafter(knowing(answers, lambda length, right: [(t + 1) % 512 for t in right]))
    async with scripted(wrong) as config, running(tiny, drafters={"d": config}) as verifier:
        answers[tuple(prompts[2])] = want = await off(verifier, prompts[2], max_tokens=200)
        before = verifier.metric("outrider_spec_decode_num_draft_tokens_total")
        reply = await verifier.generate(request(prompts[2], max_tokens=200))
        assert reply.tokens == want
        assert [len(run.token_ids) for run in reply.runs] == [1] * 200
        assert reply.finished is not None
        stats = reply.finished.speculation
        assert (stats.rounds, stats.accepted_tokens) == (200, 0) and stats.drafts > 100
        # An acceptance of nought is seen in the metrics, and they agree with the request's own counts.
        after = verifier.metric("outrider_spec_decode_num_draft_tokens_total")
        assert after - before == stats.draft_tokens
        assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") == 0


@pytest.mark.parametrize("target, draft", [(512, 640), (640, 512)])
async def test_a_padded_vocabulary_on_either_side(
    tmp_path: Path, prompts: Prompts, target: int, draft: int
) -> None:
    one = make_tiny("llama", tmp_path / "target", vocab_size=target)
    other = make_tiny("llama", tmp_path / "draft", vocab_size=draft, layers=1)
    async with real_drafter(model=str(other)) as drafter, running(one, drafters={"d": drafter}) as verifier:
        want = [await off(verifier, prompt, sampling=sampled(1)) for prompt in prompts]
        wanted = [request(prompt, sampling=sampled(1)) for prompt in prompts]
        assert await verifier.generate_all(wanted) == want
        assert verifier.metric("outrider_spec_decode_num_draft_tokens_total") > 0


async def test_a_switch_for_one_request_does_not_touch_the_others(tiny: Path, prompts: Prompts) -> None:
    async with real_drafter(model=str(tiny)) as twin, running(tiny, drafters={"d": twin}) as verifier:
        want = await off(verifier, prompts[5], max_tokens=50)
        switches = (OFF, SpeculationParams(), SpeculationParams(max_draft_tokens=0), SpeculationParams())
        replies = await asyncio.gather(
            *(verifier.generate(request(prompts[5], max_tokens=50, speculation=one)) for one in switches)
        )
        assert [reply.tokens for reply in replies] == [want] * 4
        drafted = [reply.finished.speculation.draft_tokens for reply in replies if reply.finished]
        assert drafted[0] == drafted[2] == 0 and drafted[1] > 0 and drafted[3] > 0
