"""Drafts give way to load and come back, without a stall, and change nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.core.params import SpeculationParams
from outrider.wire.messages import AdvanceDraft, OpenDraft, SessionRequest
from tests.integration.verifying.harness import OFF, request, running
from tests.integration.verifying.scripted import ScriptedDrafter, knowing, scripted

pytestmark = pytest.mark.usefixtures("patient")


def asked(drafter: ScriptedDrafter) -> list[int]:
    """Depths that were asked for, those of 0 left out."""
    return [
        command.draft_length
        for command in drafter.commands
        if isinstance(command, OpenDraft | AdvanceDraft) and command.draft_length
    ]


async def test_at_high_concurrency_no_step_has_more_rows_than_pay(
    tiny: Path, prompts: list[list[int]]
) -> None:
    """Case 34: with eight sessions and 16 rows a step each has one draft token, alone it has four."""
    answers: dict[tuple[int, ...], list[int]] = {}
    drafter = ScriptedDrafter(knowing(answers, lambda _, right: right))
    batch = [request(prompt, max_tokens=40) for prompt in prompts[:8]]
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, step_rows=16, draft_length=4) as verifier,
    ):
        off = await verifier.generate_all(
            [request(one.prompt, max_tokens=40, speculation=OFF) for one in batch]
        )
        answers |= {tuple(one.prompt): tokens for one, tokens in zip(batch, off, strict=True)}
        alone = await verifier.generate(request(batch[0].prompt, max_tokens=40))
        assert alone.tokens == off[0]
        assert max(asked(drafter)) == 4
        drafter.commands.clear()
        assert await verifier.generate_all(batch) == off
        depths = asked(drafter)
    # Sessions start and end one by one, so at both ends fewer run.
    assert depths.count(1) > len(depths) // 2


async def test_over_the_threshold_to_no_drafts_and_back_nothing_stalls(
    tiny: Path, prompts: list[list[int]]
) -> None:
    """Case 35: from 3 sessions on nobody drafts, so nobody waits for a drafter; then it is asked again."""
    answers: dict[tuple[int, ...], list[int]] = {}
    drafter = ScriptedDrafter(knowing(answers, lambda _, right: right))
    lengths = [60, *[20] * 5]

    def batch(speculation: SpeculationParams | None = None) -> list[SessionRequest]:
        return [
            request(prompt, max_tokens=length, speculation=speculation)
            for prompt, length in zip(prompts, lengths, strict=False)
        ]

    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, step_rows=5, draft_length=4) as verifier,
    ):
        off = await verifier.generate_all(batch(OFF))
        answers |= {tuple(prompt): tokens for prompt, tokens in zip(prompts, off, strict=False)}
        for _ in range(2):  # both ways, twice
            drafter.commands.clear()
            replies = await asyncio.gather(*map(verifier.generate, batch()))
            assert [reply.tokens for reply in replies] == off
            advances = [command for command in drafter.commands if isinstance(command, AdvanceDraft)]
            assert any(command.draft_length == 0 for command in advances)
            assert asked(drafter), "once alone again, the long session is drafted for"
            last = replies[0].finished
            assert last is not None and last.speculation.accepted_tokens > 0
            assert last.speculation.missed == 0
