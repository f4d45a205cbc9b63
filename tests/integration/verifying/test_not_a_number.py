"""A session whose logits are no numbers ends alone: not the others, not the engine thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from outrider.core.errors import InternalError, OutriderError
from outrider.core.params import SpeculationParams
from tests.integration.verifying.harness import OFF, Reply, request, running, sampled, until
from tests.integration.verifying.scripted import Held, ScriptedDrafter, scripted
from tests.tiny_models import make_tiny

POISON = 500
"""Token whose embedding is NaN in the doctored model: nothing can be drawn after it."""


REFUSED = 499
"""Token that the engine is made to refuse."""


@pytest.fixture
def prompts(prompts: list[list[int]]) -> list[list[int]]:
    """Without the two."""
    return [[token if token < 499 else 7 for token in prompt] for prompt in prompts]


@pytest.fixture(scope="module")
def doctored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with one spoilt token that it hardly ever draws by itself."""
    folder = make_tiny("llama", tmp_path_factory.mktemp("doctored"), vocab_size=512, max_position=512)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    weights["lm_head.weight"][[POISON, REFUSED]] = 0.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("length", [1, 40])  # prefilled in one step with others, or in several
async def test_a_prompt_without_logits_ends_its_own_session_only(
    doctored: Path, prompts: list[list[int]], length: int
) -> None:
    healthy = [
        request(prompt, sampling=sampled(i, top_k=20), max_tokens=40) for i, prompt in enumerate(prompts)
    ]
    again = [
        request(prompt, sampling=sampled(i, top_k=20), max_tokens=40) for i, prompt in enumerate(prompts)
    ]
    sick = [request([POISON, *[7] * (length - 1)], max_tokens=10) for _ in range(3)]
    async with running(doctored, prefill_chunk=16, prefix_cache=False) as verifier:
        expected = await verifier.generate_all(healthy)
        assert POISON not in {token for tokens in expected for token in tokens}
        results = await asyncio.gather(
            *(verifier.generate(one) for one in [*again, *sick]), return_exceptions=True
        )
        alive = [result.tokens for result in results if isinstance(result, Reply)]
        assert alive == expected
        assert [type(result) for result in results[len(again) :]] == [InternalError] * 3
        await until(lambda: verifier.used == 0)
        assert (
            await verifier.generate(request(prompts[3], sampling=sampled(3, top_k=20), max_tokens=40))
        ).tokens == (expected[3])


@pytest.mark.usefixtures("patient")
async def test_a_draft_without_logits_costs_its_session_nothing_but_time(
    doctored: Path, prompts: list[list[int]]
) -> None:
    def poisoned(held: Held) -> list:
        return [held.propose([POISON] * held.wanted)]

    async with (
        scripted(ScriptedDrafter(poisoned)) as config,
        running(doctored, drafters={"s": config}) as verifier,
    ):
        off = [request(p, sampling=sampled(i, top_k=20), speculation=OFF) for i, p in enumerate(prompts)]
        expected = await verifier.generate_all(off)
        wanted = [
            request(
                p, sampling=sampled(i, top_k=20), speculation=SpeculationParams(max_draft_tokens=3 * (i % 2))
            )
            for i, p in enumerate(prompts)
        ]
        assert await verifier.generate_all(wanted) == expected


async def test_what_the_engine_refuses_of_one_session_ends_that_one_only(
    doctored: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine checks before it runs; a step with one bad item is repeated item by item."""
    async with running(doctored) as verifier:
        healthy = [request(prompt, sampling=sampled(i, top_k=20)) for i, prompt in enumerate(prompts)]
        expected = await verifier.generate_all(healthy)
        check = verifier.engine._check_tokens

        def strict(kv_len: int, tree: object) -> None:
            if REFUSED in tree.token_ids:  # type: ignore[attr-defined]
                raise InternalError("refused")
            check(kv_len, tree)  # type: ignore[arg-type]

        monkeypatch.setattr(verifier.engine, "_check_tokens", strict)
        again = [request(prompt, sampling=sampled(i, top_k=20)) for i, prompt in enumerate(prompts)]
        results = await asyncio.gather(
            *(verifier.generate(one) for one in [request([REFUSED]), *again]), return_exceptions=True
        )
        assert isinstance(results[0], OutriderError)
        assert [result.tokens for result in results[1:] if isinstance(result, Reply)] == expected
