"""Speculation changes speed, never output: on equals off, token for token."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stack import Stack
from tests.traffic import PROMPT, Generated, ask, connected, generate, generate_all

PROMPTS = (PROMPT, "What is the capital of France?", "def add(first, second): return first + second\n" * 4)
DRAFTERS = ("twin", "other", "lookup", "fused", "other+lookup")


async def off_then_on(
    stack: Stack, drafters: tuple[str, ...], prompts: tuple[str, ...], **request: Any
) -> dict[str, list[Generated]]:
    """Each prompt alone with speculation off, then all drafters and all prompts at once."""
    async with connected(stack.grpc) as stub:
        off = [await generate(stub, ask(prompt, drafter=None, **request)) for prompt in prompts]
        on = await generate_all(
            stub, [ask(prompt, drafter=name, **request) for name in drafters for prompt in prompts]
        )
    for index, got in enumerate(on):
        expected = off[index % len(prompts)]
        assert got.token_ids == expected.token_ids
        assert got.text == expected.text
        assert got.finished.reason == expected.finished.reason
    assert all(got.stats.drafts == 0 and not got.stats.drafter for got in off)
    size = len(prompts)
    return {name: on[index * size : (index + 1) * size] for index, name in enumerate(drafters)}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draft_tokens", [None, 1, 7])
async def test_on_is_off(tiny: Stack, temperature: float, draft_tokens: int | None) -> None:
    got = await off_then_on(
        tiny, DRAFTERS, PROMPTS, temperature=temperature, draft_tokens=draft_tokens, max_tokens=96
    )
    for name in ("twin", "other"):
        assert sum(one.stats.drafts for one in got[name]) > 0, f"{name} was never asked"
    for one in got["twin"]:
        # The same weights, the same noise, the same bits: no token of the twin is ever refused.
        assert one.stats.accepted_tokens == one.stats.draft_tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_on_is_off_with_end_of_sequence(tiny: Stack, temperature: float) -> None:
    await off_then_on(
        tiny, DRAFTERS, PROMPTS, temperature=temperature, seed=3, max_tokens=300, ignore_eos=False
    )


async def test_the_seed_in_force_gives_the_same_tokens_again(tiny: Stack) -> None:
    unseeded = ask(temperature=1.0)
    unseeded.sampling.ClearField("seed")
    async with connected(tiny.grpc) as stub:
        first, second = await generate_all(stub, [unseeded, unseeded])
        again = await generate(stub, ask(temperature=1.0, seed=first.seed))
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    assert again.token_ids == first.token_ids


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_on_is_off_on_the_demo_model(demo: Stack, temperature: float) -> None:
    prompts = ("Why is the sky blue?", "Repeat: one two three four. One two three four. One two")
    got = await off_then_on(
        demo, ("draft_model", "prompt_lookup"), prompts, temperature=temperature, max_tokens=24
    )
    assert sum(one.stats.drafts for one in got["draft_model"]) > 0
    if temperature == 0:
        assert sum(one.stats.accepted_tokens for one in got["draft_model"]) > 0
