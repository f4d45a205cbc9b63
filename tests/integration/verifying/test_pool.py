"""A KV pool that is too small for all: sessions give way, wait, and lose nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.params import SpeculationParams
from tests.integration.verifying.harness import OFF, real_drafter, request, running, sampled


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_preempted_sessions_end_with_the_same_tokens(
    tiny: Path, prompts: list[list[int]], dtype: str
) -> None:
    batch = [(p, sampled(i), 60) for i, p in enumerate(prompts)]
    async with running(tiny, dtype=dtype) as roomy:
        expected = await roomy.generate_all([request(p, sampling=s, max_tokens=m) for p, s, m in batch])
        assert roomy.metric("outrider_num_preemptions_total") == 0
    async with (
        real_drafter(dtype=dtype, model=str(tiny)) as config,
        running(tiny, dtype=dtype, drafters={"d": config}, pool_tokens=320) as tight,
    ):
        before = 0.0
        for speculation in (OFF, SpeculationParams()):
            got = await tight.generate_all(
                [request(p, sampling=s, max_tokens=m, speculation=speculation) for p, s, m in batch]
            )
            assert got == expected
            after = tight.metric("outrider_num_preemptions_total")
            assert after > before
            before = after
            assert tight.used == 0


async def test_sessions_that_fit_only_one_at_a_time_all_finish(tiny: Path) -> None:
    async with running(tiny, pool_tokens=256, prefix_cache=False) as verifier:
        batch = [request([7 + i] * 150, max_tokens=100) for i in range(4)]
        tokens = await verifier.generate_all(batch)
        assert [len(one) for one in tokens] == [100] * 4
        assert verifier.used == 0


async def test_chunks_of_a_long_prompt_mix_with_rounds(tiny: Path, prompts: list[list[int]]) -> None:
    long = [3 + i % 500 for i in range(400)]
    async with running(tiny, prefill_chunk=16) as verifier:
        alone = [
            (await verifier.generate(request(long))).tokens,
            (await verifier.generate(request(prompts[2], max_tokens=60))).tokens,
        ]
        together = await verifier.generate_all([request(long), request(prompts[2], max_tokens=60)])
        assert together == alone


async def test_a_shared_prefix_is_counted_as_cached(tiny: Path) -> None:
    prompt = [3 + i for i in range(100)]
    async with running(tiny) as verifier:
        first = await verifier.generate(request(prompt))
        second = await verifier.generate(request(prompt))
        assert first.tokens == second.tokens
        assert first.finished is not None and second.finished is not None
        assert first.finished.usage.cached_prompt_tokens == 0
        assert second.finished.usage.cached_prompt_tokens >= 80
