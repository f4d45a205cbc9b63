"""Log-probabilities are the plain model's, and the same bits with any drafter and in any batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.core.errors import InvalidRequestError
from outrider.core.params import (
    Acceptance,
    LogitEdits,
    LogprobParams,
    SamplingParams,
    SpeculationParams,
    TokenLogprobs,
)
from outrider.core.rounds import Proposal
from outrider.core.sessions import FinishReason
from outrider.core.trees import TokenTree
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import DraftCommand, DraftEvent, PromptLogprobs, SessionRequest, SessionTokens
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
    until,
)
from tests.integration.verifying.scripted import Held, ScriptedDrafter, knowing, scripted

EDITED = LogitEdits(logit_bias=((7, 3.0), (11, -100.0)), frequency_penalty=0.7, repetition_penalty=1.3)
SAMPLINGS = [
    GREEDY,
    sampled(11),
    SamplingParams(temperature=0.0, edits=EDITED),
    sampled(12, top_k=20, top_p=0.9),
    sampled(13, edits=EDITED),
]
WANTED = [
    LogprobParams(20, 2),
    LogprobParams(0),
    LogprobParams(),
    LogprobParams(3, 0),
    LogprobParams(None, 5),
]
Told = tuple[list[int], list[TokenLogprobs], list[TokenLogprobs]]


def mixed(
    prompts: Sequence[Sequence[int]], speculation: SpeculationParams | None = None
) -> list[SessionRequest]:
    """A batch of different parameters, lengths and wishes."""
    return [
        request(
            prompt,
            sampling=SAMPLINGS[i % 5],
            max_tokens=20 + i,
            speculation=speculation,
            logprobs=WANTED[(i + i // 5) % 5],
        )
        for i, prompt in enumerate(prompts)
    ]


def told(reply: Reply) -> Told:
    return reply.tokens, reply.logprobs, reply.prompt_logprobs


async def tell_all(verifier: Verifier, wanted: Sequence[SessionRequest]) -> list[Told]:
    """Run requests side by side."""
    return [told(reply) for reply in await asyncio.gather(*(verifier.generate(one) for one in wanted))]


def check_shape(wanted: LogprobParams, prompt: Sequence[int], got: Told) -> None:
    """What was asked for, and nothing else."""
    tokens, logprobs, prompt_logprobs = got
    assert [entry.token_id for entry in logprobs] == ([] if wanted.top is None else tokens)
    assert [entry.token_id for entry in prompt_logprobs] == (
        [] if wanted.prompt_top is None else list(prompt[1:])
    )
    assert all(len(entry.top) == wanted.top for entry in logprobs)
    assert all(len(entry.top) == wanted.prompt_top for entry in prompt_logprobs)


def check_against(model: torch.nn.Module, prompt: Sequence[int], got: Told) -> None:
    """One plain forward over prompt and output tells the same."""
    tokens, logprobs, prompt_logprobs = got
    with torch.inference_mode():
        raw = model(torch.tensor([[*prompt, *tokens]])).logits[0].float()
    plain = torch.log_softmax(raw, dim=-1)
    entries = [*enumerate(prompt_logprobs), *enumerate(logprobs, start=len(prompt) - 1)]
    for row, entry in entries:
        assert entry.logprob == pytest.approx(float(plain[row, entry.token_id]), abs=1e-4)
        assert entry.rank == pytest.approx(int((plain[row] >= plain[row, entry.token_id]).sum()), abs=1)
        best = plain[row].topk(len(entry.top)).values.tolist() if entry.top else []
        assert [value for _, value in entry.top] == pytest.approx(best, abs=1e-4)
        for token_id, value in entry.top:
            assert value == pytest.approx(float(plain[row, token_id]), abs=1e-4)


@pytest.fixture(scope="module")
def plain(tiny: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()


async def test_they_are_the_plain_models_whatever_edits_the_logits(
    tiny: Path, plain: torch.nn.Module, prompts: list[list[int]]
) -> None:
    batch = mixed(prompts, OFF)
    async with running(tiny) as verifier:
        for one, got in zip(batch, await tell_all(verifier, batch), strict=True):
            check_shape(one.logprobs, one.prompt, got)
            check_against(plain, one.prompt, got)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["same_model", "other_model", "prompt_lookup"])
async def test_logprobs_with_speculation_are_those_without(
    tiny: Path, tiny_draft: Path, prompts: list[list[int]], dtype: str, method: str
) -> None:
    """Broken, or a crash of the worker, in other servers: here the same bits with every drafter."""
    settings = {
        "same_model": {"model": str(tiny), "run_ahead": 4},
        "other_model": {"model": str(tiny_draft)},
        "prompt_lookup": {"method": "prompt_lookup"},
    }[method]
    async with (
        real_drafter(dtype=dtype, **settings) as config,
        running(tiny, drafters={"d": config}, dtype=dtype) as verifier,
    ):
        off = await tell_all(verifier, mixed(prompts, OFF))
        assert await tell_all(verifier, mixed(prompts)) == off
        assert [told(await verifier.generate(one)) for one in mixed(prompts)] == off
        if method == "same_model":
            assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") > 0
        assert verifier.used == 0


@pytest.mark.usefixtures("patient")
async def test_a_drafter_of_half_wrong_trees_changes_none(tiny: Path, prompts: list[list[int]]) -> None:
    answers: dict[tuple[int, ...], list[int]] = {}

    def script(held: Held) -> list[Proposal]:
        (proposal,) = knowing(answers, lambda _, right: right)(held)
        assert isinstance(proposal, Proposal)
        ids, parents, above = [], [], -1
        for depth, token in enumerate(list(proposal.tree.token_ids)[:3]):
            ids += [(token + 1) % 512, (token + depth % 2 * 9) % 512]  # the second one is right or wrong
            parents += [above, above]
            above = len(ids) - 1
        return [held.propose((), tree=TokenTree(tuple(ids), tuple(parents)))]

    wanted = SpeculationParams(max_draft_tokens=8)
    drafter = ScriptedDrafter(script)
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        off = await tell_all(verifier, mixed(prompts, OFF))
        answers |= {tuple(p): got[0] for p, got in zip(prompts, off, strict=True)}
        assert await tell_all(verifier, mixed(prompts, wanted)) == off
        assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") > 0


@pytest.mark.parametrize("rule", [Acceptance.TOKEN, Acceptance.BLOCK])
async def test_by_the_other_rules_they_are_the_plain_models_too(
    tiny: Path, tiny_draft: Path, plain: torch.nn.Module, prompts: list[list[int]], rule: Acceptance
) -> None:
    async with (
        real_drafter(model=str(tiny_draft)) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        batch = mixed(prompts, SpeculationParams(acceptance=rule))
        for one, got in zip(batch, await tell_all(verifier, batch), strict=True):
            check_shape(one.logprobs, one.prompt, got)
            check_against(plain, one.prompt, got)
        assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") > 0


async def test_logprobs_without_alternatives_are_one_for_each_token(
    tiny: Path, prompts: list[list[int]]
) -> None:
    """`logprobs=true, top_logprobs=0`: an index error elsewhere."""
    async with real_drafter(model=str(tiny)) as twin, running(tiny, drafters={"d": twin}) as verifier:
        for one in prompts[:3]:
            reply = await verifier.generate(request(one, logprobs=LogprobParams(top=0)))
            assert [entry.token_id for entry in reply.logprobs] == reply.tokens and len(reply.tokens) == 24
            assert all(entry.top == () and entry.rank >= 1 for entry in reply.logprobs)


async def test_no_logprob_is_zero_with_speculation_and_a_greedy_token_is_the_first(
    tiny: Path, prompts: list[list[int]]
) -> None:
    """Every one was 0.0, probability 1, elsewhere."""
    async with real_drafter(model=str(tiny)) as twin, running(tiny, drafters={"d": twin}) as verifier:
        for prompt in prompts:
            reply = await verifier.generate(request(prompt, logprobs=LogprobParams(top=2)))
            assert reply.finished is not None and reply.finished.speculation.accepted_tokens > 0
            for entry in reply.logprobs:
                assert entry.logprob < 0 and entry.rank == 1
                assert entry.top[0] == (entry.token_id, entry.logprob) and entry.top[1][1] <= entry.logprob


async def test_trimmed_with_the_tokens_at_every_offset_of_a_run(
    tiny: Path, prompts: list[list[int]], patient: None
) -> None:
    asked = LogprobParams(top=1)
    async with real_drafter(model=str(tiny)) as twin, running(tiny, drafters={"d": twin}) as verifier:
        full = await verifier.generate(request(prompts[3], speculation=OFF, max_tokens=30, logprobs=asked))
        for length in range(1, 13):
            reply = await verifier.generate(request(prompts[3], max_tokens=length, logprobs=asked))
            assert told(reply) == (full.tokens[:length], full.logprobs[:length], [])
            assert reply.reason is FinishReason.LENGTH
            stop = full.tokens[length]
            cut = full.tokens.index(stop)
            reply = await verifier.generate(request(prompts[3], stop=[stop], max_tokens=30, logprobs=asked))
            assert told(reply) == (full.tokens[:cut], full.logprobs[:cut], [])
            assert reply.reason is FinishReason.STOP


@pytest.mark.parametrize("chunk", [16, 512])
async def test_prompt_logprobs_with_a_warm_prefix_cache(
    tiny: Path, plain: torch.nn.Module, chunk: int
) -> None:
    prompt = [3 + (7 * i) % 500 for i in range(200)]
    asked = request(prompt, logprobs=LogprobParams(prompt_top=4), speculation=OFF)
    async with running(tiny, prefill_chunk=chunk) as verifier:
        cold = await verifier.generate(asked)
        check_shape(asked.logprobs, prompt, told(cold))
        check_against(plain, prompt, told(cold))
        warm = await verifier.generate(request(prompt, logprobs=LogprobParams(prompt_top=4)))
        assert told(warm) == told(cold)
        assert warm.finished is not None and warm.finished.usage.cached_prompt_tokens == 0
        other = await verifier.generate(request(prompt))  # who asks for none still shares
        assert other.tokens == cold.tokens
        assert other.finished is not None and other.finished.usage.cached_prompt_tokens >= 180


class UntilBothAreHeld(ScriptedDrafter):
    """Answers nobody before two sessions have been opened."""

    withheld: tuple[DraftEvent | pb.DraftEvent, ...] = ()

    def _apply(self, command: DraftCommand) -> Iterable[DraftEvent | pb.DraftEvent]:
        self.withheld += tuple(super()._apply(command))
        if len({one.session_id for one in self.commands}) < 2:
            return ()
        events, self.withheld = self.withheld, ()
        return events


@pytest.mark.usefixtures("patient")
async def test_prompt_logprobs_are_told_once_when_sessions_give_way(
    tiny: Path, plain: torch.nn.Module
) -> None:
    """Two sessions whose prompts fit the pool together, and whose outputs do not. Neither is drafted for, and
    so neither goes on, before both are in it."""
    some = [[5 + 3 * i for i in range(100)], [7 + 2 * i for i in range(110)]]
    batch = [
        request(p, sampling=sampled(i), max_tokens=120, logprobs=LogprobParams(2, 2))
        for i, p in enumerate(some)
    ]
    async with running(tiny) as roomy:
        expected = [told(await roomy.generate(one)) for one in batch]
        assert roomy.metric("outrider_num_preemptions_total") == 0
    for one, got in zip(batch, expected, strict=True):
        check_against(plain, one.prompt, got)
    async with (
        scripted(UntilBothAreHeld(lambda held: [held.propose([5])])) as config,
        running(tiny, drafters={"d": config}, pool_tokens=320, prefill_chunk=16, patience_ms=60_000) as tight,
    ):
        assert await tell_all(tight, batch) == expected
        assert tight.metric("outrider_num_preemptions_total") > 0
        assert tight.used == 0


@pytest.mark.parametrize("field", ["top", "prompt_top"])
async def test_too_many_alternatives_are_refused(tiny: Path, field: str) -> None:
    async with running(tiny) as verifier:
        with pytest.raises(InvalidRequestError) as refused:
            await verifier.generate(request([3, 4], logprobs=LogprobParams(**{field: 21})))
        assert refused.value.field == f"logprobs.{field}"


@pytest.mark.parametrize("from_token", [0, 2])
async def test_resuming_a_live_session_replays_them(
    tiny: Path, prompts: list[list[int]], from_token: int
) -> None:
    asked = LogprobParams(3, 1)
    async with running(tiny) as verifier:
        full = await verifier.generate(request(prompts[5], max_tokens=300, logprobs=asked))
        wanted = request(prompts[5], max_tokens=300, logprobs=asked)
        older = verifier.stream(wanted)
        seen = 0
        while seen < 6:
            event = await anext(older)
            seen += len(event.token_ids) if isinstance(event, SessionTokens) else 0
        reply = Reply()
        async for event in verifier.resume(wanted.session_id, from_token):
            reply.take(event)
        expected = (full.tokens[from_token:], full.logprobs[from_token:], full.prompt_logprobs)
        assert told(reply) == (*expected[:2], [] if from_token else expected[2])


async def test_a_session_from_the_store_tells_of_all_its_tokens(tiny: Path, prompts: list[list[int]]) -> None:
    store, asked = MemoryStore(), LogprobParams(3, 1)
    wanted = request(prompts[5], max_tokens=300, logprobs=asked)
    async with running(tiny, store=store) as first:
        full = await first.generate(request(prompts[5], max_tokens=300, logprobs=asked))
        stream = first.stream(wanted)
        while not isinstance(await anext(stream), SessionTokens):
            pass
        await first.replica.writer.flush(5.0)
        held = len((await store.load(wanted.session_id)).tokens)
        await first.replica.drain(0.0)
    assert held > 0
    async with running(tiny, store=store) as second:
        reply = Reply()
        async for event in second.resume(wanted.session_id, 0):
            reply.take(event)
        assert reply.tokens == full.tokens
        assert told(reply) == told(full)
        await until(lambda: second.used == 0)


async def test_a_session_taken_over_before_its_first_token_tells_of_its_prompt(
    tiny: Path, prompts: list[list[int]]
) -> None:
    store, asked = MemoryStore(), LogprobParams(0, 1)
    async with running(tiny, store=store) as verifier:
        full = await verifier.generate(request(prompts[5], logprobs=asked))
        wanted = request(prompts[5], logprobs=asked)
        await store.create(verifier.replica.admission.record(wanted))
        events = [event async for event in verifier.resume(wanted.session_id, 0)]
        reply = Reply()
        for event in events:
            reply.take(event)
        assert told(reply) == told(full)
        assert isinstance(events[1], PromptLogprobs)
