"""Parameters that edit logits: the plain model's output, with any drafter, in a batch of different ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.config.schema import DrafterConfig
from outrider.core.errors import InvalidRequestError
from outrider.core.params import LogitEdits, SamplingParams, SpeculationParams, StopParams
from outrider.core.rounds import Proposal
from outrider.core.sampling import coupled_picks
from outrider.core.sessions import SessionRecord
from outrider.core.trees import TokenTree
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import SessionFinished, SessionRequest, SessionTokens
from tests.integration.verifying.conftest import VOCAB
from tests.integration.verifying.harness import OFF, Verifier, real_drafter, request, running
from tests.integration.verifying.scripted import Held, ScriptedDrafter, scripted
from tests.tiny_models import EOS_TOKEN_ID
from tests.unit.core.reference_edits import edited

Prompts = list[list[int]]
HALF = tuple(range(3, VOCAB, 2))
"""Ids that some are allowed; odd ones."""
EDITS = {
    "repetition": LogitEdits(repetition_penalty=1.6),
    "frequency": LogitEdits(frequency_penalty=1.5),
    "presence": LogitEdits(presence_penalty=-1.2),
    "bias": LogitEdits(logit_bias=((5, 4.0), (6, -100.0), (7, 3.5))),
    "allowed": LogitEdits(allowed_token_ids=HALF),
    "bad words": LogitEdits(bad_words=((9,), (11, 12), (13, 11, 15))),
    "min tokens": LogitEdits(min_tokens=12, logit_bias=((EOS_TOKEN_ID, 6.0),)),
    "all": LogitEdits(
        allowed_token_ids=(EOS_TOKEN_ID, *HALF),
        bad_words=((9,), (11, 13), (15, 11, 17)),
        min_tokens=9,
        logit_bias=((5, 4.0), (7, -100.0), (EOS_TOKEN_ID, 3.0)),
        repetition_penalty=1.2,
        frequency_penalty=0.4,
        presence_penalty=-0.3,
    ),
}
DRAFTERS = ("twin", "other", "lookup", "hostile")


def requests(prompts: Prompts, temperature: float, speculation: SpeculationParams | None = None) -> list:
    """Eight at once, each with edits of its own, and the end of sequence in force."""
    return [
        request(
            prompt,
            sampling=SamplingParams(
                temperature, seed=100 + index, top_p=0.98 if index % 3 else 1.0, edits=edits
            ),
            max_tokens=28,
            speculation=speculation,
            ignore_eos=False,
        )
        for index, (prompt, edits) in enumerate(zip(prompts, EDITS.values(), strict=True))
    ]


def plain(model: torch.nn.Module, wanted: SessionRequest) -> list[int]:
    """One token at a time: transformers' own forward, edits by the plain implementation."""
    edits = replace(wanted.sampling.edits, end_token_ids=(EOS_TOKEN_ID,))
    output: list[int] = []
    with torch.inference_mode():
        while len(output) < wanted.stop.max_tokens:
            tokens = torch.tensor([[*wanted.prompt, *output]])
            row = edited(model(tokens).logits[0, -1].float().tolist(), edits, wanted.prompt, output)
            position = len(wanted.prompt) + len(output)
            token = int(coupled_picks(torch.tensor([row]), [(wanted.sampling, position)])[0])
            if token == EOS_TOKEN_ID:
                break
            output.append(token)
    return output


def hostile(answers: dict[tuple[int, ...], list[int]]) -> ScriptedDrafter:
    """Knows what is going to come, and hides it among what is banned, biased or ends the text."""
    rng = random.Random(3)

    def script(held: Held) -> Iterator[Proposal]:
        right = next(a for p, a in answers.items() if [*p, *a][: len(held.tokens)] == held.tokens)
        done = len(held.tokens) - next(len(p) for p, a in answers.items() if a is right)
        ids: list[int] = []
        parents: list[int] = []
        above = -1
        for token in right[done : done + 3]:
            lures = [9, 11, 13, 6, EOS_TOKEN_ID, held.tokens[-1], *rng.sample(range(VOCAB), 2)]
            siblings = list(dict.fromkeys([*rng.sample(lures, 3), token]))
            rng.shuffle(siblings)
            ids += siblings
            parents += [above] * len(siblings)
            above = len(ids) - len(siblings) + siblings.index(token)
        yield held.propose((), tree=TokenTree(tuple(ids), tuple(parents)).truncated(held.wanted))

    return ScriptedDrafter(script)


@asynccontextmanager
async def drafting(
    kind: str, tiny: Path, tiny_draft: Path, answers: dict[tuple[int, ...], list[int]]
) -> AsyncIterator[DrafterConfig]:
    """A drafter of some kind."""
    async with AsyncExitStack() as stack:
        if kind == "hostile":
            yield await stack.enter_async_context(scripted(hostile(answers)))
        elif kind == "lookup":
            yield await stack.enter_async_context(real_drafter(method="prompt_lookup", ngram_min=1))
        else:
            yield await stack.enter_async_context(
                real_drafter(model=str(tiny if kind == "twin" else tiny_draft))
            )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_without_speculation_it_equals_the_plain_model(
    tiny: Path, prompts: Prompts, temperature: float
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    batch = requests(prompts, temperature, OFF)
    async with running(tiny) as verifier:
        got = await verifier.generate_all(batch)
        alone = [(await verifier.generate(one)).tokens for one in requests(prompts, temperature, OFF)]
    assert got == alone == [plain(model, one) for one in batch]
    assert len(got[list(EDITS).index("min tokens")]) >= 12


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", DRAFTERS)
async def test_speculation_changes_nothing(
    tiny: Path, tiny_draft: Path, prompts: Prompts, kind: str, temperature: float
) -> None:
    answers: dict[tuple[int, ...], list[int]] = {}
    async with (
        drafting(kind, tiny, tiny_draft, answers) as config,
        running(tiny, drafters={"d": config.model_copy(update={"draft_length": 8})}) as verifier,
    ):
        off = await verifier.generate_all(requests(prompts, temperature, OFF))
        answers |= {tuple(prompt): tokens for prompt, tokens in zip(prompts, off, strict=True)}
        assert await verifier.generate_all(requests(prompts, temperature)) == off
        drafted = verifier.metric("outrider_spec_decode_num_draft_tokens_total")
        accepted = verifier.metric("outrider_spec_decode_num_accepted_tokens_total")
        assert 0 < drafted >= accepted > (0 if kind in ("twin", "hostile") else -1)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_same_model_as_drafter_is_always_right(
    tiny: Path, prompts: Prompts, temperature: float
) -> None:
    """It edits as the target does, its own drafted tokens included: else it would be wrong now and then."""
    async with real_drafter(model=str(tiny)) as twin, running(tiny, drafters={"d": twin}) as verifier:
        for one in requests(prompts, temperature):
            wanted = replace(one, stop=replace(one.stop, ignore_eos=True))
            reply = await verifier.generate(wanted)
            stats = reply.finished.speculation if reply.finished else None
            assert stats is not None and stats.accepted_tokens == stats.draft_tokens > 0, (
                wanted.sampling.edits
            )


async def test_a_session_preempted_and_computed_again_goes_on_as_before(tiny: Path, prompts: Prompts) -> None:
    async with running(tiny, pool_tokens=512, prefix_cache=False) as verifier:
        wanted = [
            request(
                prompt, sampling=SamplingParams(seed=7, edits=EDITS["all"]), max_tokens=200, speculation=OFF
            )
            for prompt in prompts[3:6]
        ]
        alone = [
            (await verifier.generate(replace(one, session_id=f"alone{i}"))).tokens
            for i, one in enumerate(wanted)
        ]
        assert await verifier.generate_all(wanted) == alone
        assert verifier.metric("outrider_num_preemptions_total") > 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("cut", [0, 1, 7, 19])
async def test_a_session_from_the_store_goes_on_with_its_history(
    tiny: Path, prompts: Prompts, cut: int
) -> None:
    store = MemoryStore()
    edits = replace(EDITS["all"], end_token_ids=(EOS_TOKEN_ID,), min_tokens=20)
    sampling = SamplingParams(seed=3, edits=edits)
    async with real_drafter(model=str(tiny)) as twin, running(tiny, store=store, drafters={"d": twin}) as one:
        wanted = request(prompts[3], sampling=sampling, max_tokens=30, ignore_eos=False)
        whole = (await one.generate(wanted)).tokens
        stop = StopParams(30, frozenset({EOS_TOKEN_ID}))
        await store.create(SessionRecord("s", wanted.prompt, sampling, stop, tokens=tuple(whole[:cut])))
        events = [event async for event in one.resume("s", cut)]
    assert [t for event in events if isinstance(event, SessionTokens) for t in event.token_ids] == whole[cut:]
    finished = events[-1]
    assert len(whole) >= 20 and isinstance(finished, SessionFinished)
    assert finished.speculation.accepted_tokens > 0


async def excluded(verifier: Verifier, wanted: SessionRequest) -> str:
    with pytest.raises(InvalidRequestError) as raised:
        await verifier.generate(wanted)
    return str(raised.value)


@pytest.mark.usefixtures("patient")
async def test_a_session_that_no_token_is_left_for_fails_alone(tiny: Path, prompts: Prompts) -> None:
    nothing = LogitEdits(allowed_token_ids=(20, 21), bad_words=((20, 20), (20, 21), (21, 20), (21, 21)))
    answers: dict[tuple[int, ...], list[int]] = {}
    async with (
        scripted(hostile(answers)) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        off = await verifier.generate_all(requests(prompts, 1.0, OFF))
        answers |= {tuple(prompt): tokens for prompt, tokens in zip(prompts, off, strict=True)}
        answers[3, 4, 5] = [20, 20, 21, 20]
        bad = request((3, 4, 5), sampling=SamplingParams(seed=1, edits=nothing))
        message, got = await asyncio.gather(
            excluded(verifier, bad), verifier.generate_all(requests(prompts, 1.0))
        )
        assert "no token is allowed after 1 generated tokens" in message
        assert got == off
