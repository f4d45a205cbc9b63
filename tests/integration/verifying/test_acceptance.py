"""The rules "token" and "block" in a running verifier, beside coupled sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.params import Acceptance, LogitEdits, SamplingParams, SpeculationParams
from outrider.core.rounds import Proposal
from outrider.core.trees import SparseProbs, TokenTree
from outrider.wire import convert
from outrider.wire.messages import OpenDraft
from outrider.wire.v1 import drafter_pb2 as pb
from tests.integration.verifying.harness import (
    GREEDY,
    OFF,
    Reply,
    Verifier,
    real_drafter,
    request,
    running,
    sampled,
)
from tests.integration.verifying.scripted import Held, ScriptedDrafter, scripted

RULES = [Acceptance.TOKEN, Acceptance.BLOCK]
TOKEN, BLOCK = (SpeculationParams(acceptance=rule) for rule in RULES)
COUPLED = SpeculationParams()


async def answer(verifier: Verifier, prompt: list[int], how: SpeculationParams, seed: int = 3) -> Reply:
    return await verifier.generate(request(prompt, sampling=sampled(seed), speculation=how, max_tokens=40))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", [TOKEN, BLOCK])
async def test_greedy_equals_speculation_off(
    tiny: Path, tiny_draft: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    async with (
        real_drafter(method="draft_model", model=str(tiny_draft)) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        off = await verifier.generate_all([request(prompt, speculation=OFF) for prompt in prompts])
        on = await verifier.generate_all([request(prompt, speculation=how) for prompt in prompts])
    assert on == off


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", [TOKEN, BLOCK])
@pytest.mark.parametrize(
    "sampling", [sampled(5, top_k=20), sampled(6, top_k=30, top_p=0.9), sampled(7, top_k=32, min_p=0.1)]
)
async def test_a_draft_model_that_is_the_target_is_always_believed(
    tiny: Path, prompts: list[list[int]], how: SpeculationParams, sampling: SamplingParams
) -> None:
    """Its law is the target's, as long as what it cuts off has no probability there either."""
    async with (
        real_drafter(method="draft_model", model=str(tiny)) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        for prompt in prompts[:3]:
            reply = await verifier.generate(
                request(prompt, sampling=sampling, speculation=how, max_tokens=31)
            )
            stats = reply.finished.speculation if reply.finished else None
            assert stats is not None and stats.accepted_tokens == stats.draft_tokens == 24
            assert len(reply.tokens) == 31 == stats.accepted_tokens + stats.rounds


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", [TOKEN, BLOCK])
async def test_the_same_seed_gives_the_same_again(
    tiny: Path, tiny_draft: Path, prompts: list[list[int]], how: SpeculationParams
) -> None:
    """Whether the drafter had run ahead or not, and whoever is beside it in the batch."""
    answers = []
    for run_ahead in (0, 8):
        async with (
            real_drafter(method="draft_model", model=str(tiny_draft), run_ahead=run_ahead) as config,
            running(tiny, drafters={"d": config}) as verifier,
        ):
            batch = [
                request(prompt, sampling=sampled(i), speculation=how, max_tokens=24)
                for i, prompt in enumerate(prompts)
            ]
            answers.append(await verifier.generate_all(batch))
            answers.append(
                [
                    (await verifier.generate(replace(one, session_id=f"again-{i}"))).tokens
                    for i, one in enumerate(batch)
                ]
            )
            other = await answer(verifier, prompts[0], how, seed=99)
            assert other.tokens != answers[0][0]
    assert answers[0] == answers[1] == answers[2] == answers[3]


@pytest.mark.usefixtures("patient")
async def test_coupled_sessions_do_not_notice_the_others(
    tiny: Path, tiny_draft: Path, prompts: list[list[int]]
) -> None:
    rules = [COUPLED, TOKEN, BLOCK, COUPLED, OFF, TOKEN, COUPLED, BLOCK]

    def batch(*speculation: SpeculationParams) -> list:
        return [
            request(prompt, sampling=sampled(i, top_p=0.95), speculation=how, max_tokens=20 + i)
            for i, (prompt, how) in enumerate(zip(prompts, speculation, strict=True))
        ]

    async with (
        real_drafter(method="draft_model", model=str(tiny_draft)) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        off = await verifier.generate_all(batch(*[OFF] * 8))
        mixed = await verifier.generate_all(batch(*rules))
    for how, expected, tokens in zip(rules, off, mixed, strict=True):
        if how.acceptance is Acceptance.COUPLED:
            assert tokens == expected
        else:
            assert tokens != expected and len(tokens) == len(expected)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", [TOKEN, BLOCK])
async def test_prompt_lookup_is_judged_as_chosen(tiny: Path, how: SpeculationParams) -> None:
    few = sampled(3, edits=LogitEdits(allowed_token_ids=(7, 8, 9)))  # so that it repeats itself
    wanted = request([7, 8, 9] * 8, sampling=few, speculation=how, max_tokens=40)
    async with (
        real_drafter(method="prompt_lookup") as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        reply = await verifier.generate(wanted)
        again = await verifier.generate(replace(wanted, session_id="again"))
    assert len(reply.tokens) == 40 and reply.tokens == again.tokens
    stats = reply.finished.speculation if reply.finished else None
    assert stats is not None and stats.draft_tokens > stats.accepted_tokens > 0
    assert stats.accepted_tokens == sum(run.accepted for run in reply.runs)


@pytest.mark.usefixtures("patient")
async def test_the_drafter_hears_which_rule_it_is(tiny: Path, prompts: list[list[int]]) -> None:
    """At temperature 0 that is "coupled", whatever was asked for."""
    drafter = ScriptedDrafter(lambda held: [held.propose([5])])
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        for sampling in (sampled(1), GREEDY):
            for how in (COUPLED, TOKEN, BLOCK):
                await verifier.generate(request(prompts[2], sampling=sampling, speculation=how, max_tokens=3))
    heard = [command.acceptance for command in drafter.commands if isinstance(command, OpenDraft)]
    assert heard == [Acceptance.COUPLED, *RULES, *[Acceptance.COUPLED] * 3]


def law(token_id: int, ids: Iterable[int], probs: Iterable[float]) -> Callable[[Held], list[Proposal]]:
    """Two tokens, each said to have been drawn from this."""
    told = SparseProbs(tuple(ids), tuple(probs))
    return lambda held: [held.propose([], tree=TokenTree((token_id, token_id), (-1, 0), (told, told)))]


LIES = {
    "certain": law(5, [5], [1.0]),
    "hardly possible": law(5, [5, 6], [1e-30, 1.0]),
    "past the vocabulary": law(5, [5, 9999], [0.5, 0.5]),
    "as wide as may be": law(5, range(256), [1 / 256] * 256),
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", [TOKEN, BLOCK])
@pytest.mark.parametrize("name", LIES)
async def test_lies_cost_nobody_else_anything(
    tiny: Path, prompts: list[list[int]], name: str, how: SpeculationParams
) -> None:
    async with (
        scripted(ScriptedDrafter(LIES[name])) as config,
        running(tiny, drafters={"s": config}) as verifier,
    ):
        off = await answer(verifier, prompts[3], OFF)
        (lied_to, neighbour) = await verifier.generate_all(
            [
                request(prompts[3], sampling=sampled(3), speculation=how, max_tokens=40),
                request(prompts[3], sampling=sampled(3), max_tokens=40),
            ]
        )
    assert len(lied_to) == 40
    assert neighbour == off.tokens


def malformed(ids: list[int], probs: list[float], entries: int = 1) -> Callable[[Held], list[pb.DraftEvent]]:
    def script(held: Held) -> list[pb.DraftEvent]:
        event = convert.event_to_proto(held.propose([5]))
        for _ in range(entries):
            event.proposal.tree.draft_probs.add(token_ids=ids, probs=probs)
        return [event]

    return script


MALFORMED = {
    "too much": malformed([5, 6], [0.9, 0.9]),
    "too little": malformed([5], [0.5]),
    "nothing": malformed([], []),
    "not a number": malformed([5], [float("nan")]),
    "infinite": malformed([5, 6], [float("inf"), 0.5]),
    "below zero": malformed([5, 6], [1.5, -0.5]),
    "not its own token": malformed([6], [1.0]),
    "one id twice": malformed([5, 5], [0.5, 0.5]),
    "lengths differ": malformed([5, 6], [1.0]),
    "too many": malformed([5], [1.0], entries=2),
    "huge": malformed(list(range(100_000)), [1e-5] * 100_000),
    "too wide": malformed(list(range(257)), [1 / 257] * 257),
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_laws_are_dropped(tiny: Path, prompts: list[list[int]], name: str) -> None:
    async with (
        scripted(ScriptedDrafter(MALFORMED[name])) as config,
        running(tiny, drafters={"s": config}, patience_ms=50.0) as verifier,
    ):
        reply = await verifier.generate(
            request(prompts[3], sampling=sampled(3), speculation=TOKEN, max_tokens=4)
        )
        assert len(reply.tokens) == 4
        assert reply.finished is not None and reply.finished.speculation.draft_tokens == 0
        assert verifier.metric("outrider_proposals_dropped_total", reason="malformed") > 0
