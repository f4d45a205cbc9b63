"""The output is the target's alone: with any drafter, in any batch, as a plain model would have it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.core.params import SamplingParams, SpeculationParams
from outrider.core.rounds import Proposal
from outrider.core.sampling import coupled_picks
from outrider.core.trees import TokenTree
from tests.integration.verifying.harness import GREEDY, OFF, real_drafter, request, running, sampled, until
from tests.integration.verifying.scripted import Held, ScriptedDrafter, knowing, scripted

SAMPLINGS = [GREEDY, sampled(11), sampled(12, top_k=20, top_p=0.9), sampled(13, min_p=0.05)]
DTYPES = ["float32", "bfloat16"]


def mixed(prompts: list[list[int]], speculation: SpeculationParams | None = None) -> list:
    """A batch of different sampling parameters, seeds and lengths."""
    return [
        request(prompt, sampling=SAMPLINGS[i % 4], max_tokens=20 + i, speculation=speculation)
        for i, prompt in enumerate(prompts)
    ]


def plain(model: torch.nn.Module, prompt: list[int], sampling: SamplingParams, count: int) -> list[int]:
    """One token at a time with the plain transformers forward over the whole sequence."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            logits = model(torch.tensor([tokens])).logits[0, -1:].float()
            tokens.append(int(coupled_picks(logits.clone(), [(sampling, len(tokens))])[0]))
    return tokens[len(prompt) :]


async def test_without_speculation_it_equals_the_plain_model(tiny: Path, prompts: list[list[int]]) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    batch = mixed(prompts, OFF)
    async with running(tiny) as verifier:
        got = await verifier.generate_all(batch)
    for one, tokens in zip(batch, got, strict=True):
        assert tokens == plain(model, list(one.prompt), one.sampling, one.stop.max_tokens)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_alone_or_in_a_batch_it_is_the_same(tiny: Path, prompts: list[list[int]], dtype: str) -> None:
    async with running(tiny, dtype=dtype) as verifier:
        together = await verifier.generate_all(mixed(prompts, OFF))
        alone = [(await verifier.generate(one)).tokens for one in mixed(prompts, OFF)]
    assert together == alone


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("dtype", DTYPES)
async def test_a_drafter_that_is_always_right_changes_only_the_rounds(
    tiny: Path, prompts: list[list[int]], dtype: str
) -> None:
    answers: dict[tuple[int, ...], list[int]] = {}
    drafter = ScriptedDrafter(knowing(answers, lambda _, right: right))
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}, dtype=dtype) as verifier:
        off = await verifier.generate_all(mixed(prompts, OFF))
        answers |= {tuple(p): a for p, a in zip(prompts, off, strict=True)}
        for one, expected in zip(mixed(prompts), off, strict=True):
            reply = await verifier.generate(one)
            assert reply.tokens == expected
            stats = reply.finished.speculation if reply.finished else None
            assert stats is not None and stats.accepted_tokens == stats.draft_tokens > 0
            # The prompt's own round, then 4 draft tokens and a bonus each.
            assert stats.rounds == 1 + -(-(len(expected) - 1) // 5) == len(reply.runs)
            assert stats.accepted_tokens + stats.rounds == len(expected)
            assert sum(run.accepted for run in reply.runs) == stats.accepted_tokens


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("dtype", DTYPES)
async def test_a_drafter_that_is_sometimes_right_in_a_batch_of_eight(
    tiny: Path, prompts: list[list[int]], dtype: str
) -> None:
    answers: dict[tuple[int, ...], list[int]] = {}

    def spoil(done: int, right: list[int]) -> list[int]:
        return [(token + 1) % 512 if (done + i) % 3 == 2 else token for i, token in enumerate(right)]

    drafter = ScriptedDrafter(knowing(answers, spoil))
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}, dtype=dtype) as verifier:
        off = await verifier.generate_all(mixed(prompts, OFF))
        answers |= {tuple(p): a for p, a in zip(prompts, off, strict=True)}
        assert await verifier.generate_all(mixed(prompts)) == off
        assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") > 0
        assert verifier.used == 0
        await until(lambda: not drafter.held)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("dtype", DTYPES)
async def test_trees_are_walked_along_the_targets_picks(
    tiny: Path, prompts: list[list[int]], dtype: str
) -> None:
    answers: dict[tuple[int, ...], list[int]] = {}

    def script(held: Held) -> list[Proposal]:
        (proposal,) = knowing(answers, lambda _, right: right)(held)
        assert isinstance(proposal, Proposal)
        right = list(proposal.tree.token_ids)
        # Wrong siblings stand before the right ones; below a wrong one stands a right token.
        ids, parents, above = [], [], -1
        for token in right[:3]:
            ids += [(token + 1) % 512, token]
            parents += [above, above]
            above = len(ids) - 1
        ids.append(right[0])
        parents.append(0)
        return [held.propose((), tree=TokenTree(tuple(ids), tuple(parents)))]

    drafter = ScriptedDrafter(script)
    wanted = SpeculationParams(max_draft_tokens=8)
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}, dtype=dtype) as verifier:
        off = await verifier.generate_all(mixed(prompts, OFF))
        answers |= {tuple(p): a for p, a in zip(prompts, off, strict=True)}
        assert await verifier.generate_all(mixed(prompts, wanted)) == off
        reply = await verifier.generate(mixed(prompts, wanted)[0])
        assert max(run.accepted for run in reply.runs) == 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["same_model", "other_model", "prompt_lookup"])
async def test_real_drafters(
    tiny: Path, tiny_draft: Path, prompts: list[list[int]], dtype: str, method: str
) -> None:
    settings = {
        "same_model": {"model": str(tiny), "run_ahead": 4},
        "other_model": {"model": str(tiny_draft)},
        "prompt_lookup": {"method": "prompt_lookup"},
    }[method]
    async with (
        real_drafter(dtype=dtype, **settings) as config,
        running(tiny, drafters={"d": config}, dtype=dtype) as verifier,
    ):
        off = await verifier.generate_all(mixed(prompts, OFF))
        assert await verifier.generate_all(mixed(prompts)) == off
        assert [(await verifier.generate(one)).tokens for one in mixed(prompts)] == off
        if method == "same_model":
            assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") > 0
        assert verifier.used == 0
