"""Trees out of text, verified by a real target: the output is what it is without them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.params import Acceptance, SamplingParams, SpeculationParams
from outrider.telemetry import names
from tests.integration.verifying.harness import GREEDY, OFF, real_drafter, request, running, sampled

DRAFTERS = {
    "lookup dynamic": {"method": "prompt_lookup", "tree": "dynamic"},
    "lookup static": {"method": "prompt_lookup", "tree": "3,2,1,1"},
    "lookup wide": {"method": "prompt_lookup", "tree": "dynamic", "tree_nodes": 32, "tree_top_k": 16},
    "suffix": {"method": "suffix", "suffix_shared": True, "tree": "dynamic"},
}


def repeating(count: int) -> list[list[int]]:
    """Prompts that say the same things in many orders, so that matches differ in what follows."""
    rng = random.Random(3)
    phrases = [[rng.randrange(3, 40) for _ in range(4)] for _ in range(6)]
    return [[token for _ in range(12 + 2 * n) for token in rng.choice(phrases)] for n in range(count)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
async def test_on_is_off(tiny: Path, drafter: dict[str, Any]) -> None:
    # Few tokens allowed: then what is drawn repeats itself, and trees have something to say.
    few = sampled(4, top_k=3, edits=replace(GREEDY.edits, allowed_token_ids=tuple(range(3, 11))))
    samplings: list[SamplingParams] = [GREEDY, sampled(4), few]
    async with (
        real_drafter(**drafter, max_draft_tokens=32) as config,
        running(tiny, drafters={"d": config}, draft_length=4) as verifier,
    ):
        batch = [
            request(prompt, sampling=sampling, max_tokens=50)
            for prompt in repeating(3)
            for sampling in samplings
        ]
        off = [replace(one, session_id=f"off-{n}", speculation=OFF) for n, one in enumerate(batch)]
        expected = await verifier.generate_all(off)
        assert await verifier.generate_all(batch) == expected
        assert verifier.metric(names.SPEC_ACCEPTED.name) > 0
        drafted, drafts = (verifier.metric(one.name) for one in (names.SPEC_DRAFT_TOKENS, names.SPEC_DRAFTS))
        assert drafted > 4 * drafts  # a chain has 4 at most
        greedy = [
            replace(one, session_id=f"{rule.value}-{n}", speculation=SpeculationParams(acceptance=rule))
            for rule in (Acceptance.TOKEN, Acceptance.BLOCK)
            for n, one in enumerate(batch[::3])
        ]
        assert await verifier.generate_all(greedy) == expected[::3] * 2
        assert verifier.used == 0
