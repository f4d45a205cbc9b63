"""Structured output: the grammar holds at every token, whatever drafters propose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jiter
import pytest
from tokenizers import Tokenizer

from outrider.core.params import (
    Acceptance,
    Grammar,
    GrammarKind,
    SpeculationParams,
    StopParams,
)
from outrider.core.rounds import Proposal
from outrider.core.sessions import FinishReason, SessionRecord
from outrider.core.trees import TokenTree
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import SessionTokens
from tests.integration.verifying.grammar_cases import (
    CHOICES,
    KINDS,
    SAMPLINGS,
    asking,
    batch,
    check,
    illegal,
    replies,
)
from tests.integration.verifying.harness import OFF, real_drafter, request, running
from tests.integration.verifying.scripted import Held, ScriptedDrafter, knowing, scripted
from tests.tiny_models import EOS_TOKEN_ID


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["twin", "lookup", "illegal"])
async def test_with_any_drafter_the_output_is_the_same_and_fits_the_grammar(
    tiny: Path, prompts: list[list[int]], kind: str
) -> None:
    drafter = {
        "twin": lambda: real_drafter(method="draft_model", model=str(tiny)),
        "lookup": lambda: real_drafter(method="prompt_lookup", ngram_min=1),
        "illegal": lambda: scripted(ScriptedDrafter(illegal)),
    }[kind]()
    async with drafter as config, running(tiny, drafters={"d": config}) as verifier:
        wanted = batch(prompts, OFF)
        off = await replies(verifier, wanted)
        check(tiny, wanted, off)
        drafted = verifier.metric("outrider_spec_decode_num_draft_tokens_total")
        on = await replies(verifier, batch(prompts))
        assert [reply.tokens for reply in on] == [reply.tokens for reply in off]
        assert [reply.reason for reply in on] == [reply.reason for reply in off]
        assert verifier.metric("outrider_spec_decode_num_draft_tokens_total") > drafted
        assert verifier.used == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_a_draft_model_masks_as_the_target_does(
    tiny: Path, prompts: list[list[int]], sampling: dict[str, Any]
) -> None:
    """The target itself drafts: all is accepted, once the drafter has compiled the grammar."""
    own = asking(KINDS[1][0], **sampling)
    async with (
        real_drafter(method="draft_model", model=str(tiny)) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        for _ in range(20):
            reply = await verifier.generate(request(prompts[3], sampling=own, max_tokens=40))
            assert reply.finished is not None
            stats = reply.finished.speculation
            if stats.accepted_tokens == stats.draft_tokens > 0:
                return
        raise AssertionError(f"{stats.accepted_tokens} of {stats.draft_tokens} draft tokens were accepted")


@pytest.mark.usefixtures("patient")
async def test_thirty_json_objects_at_once_with_a_drafter_that_proposes_illegal_tokens(tiny: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    grammar = Grammar(GrammarKind.JSON_OBJECT)
    wanted = [
        request([9 + index], sampling=asking(grammar, temperature=1.0, seed=index), ignore_eos=False)
        for index in range(30)
    ]
    async with (
        scripted(ScriptedDrafter(illegal)) as config,
        running(tiny, drafters={"s": config}, max_sessions=16) as verifier,
    ):
        for reply in await replies(verifier, wanted):
            text = tokenizer.decode(reply.tokens, skip_special_tokens=False).encode()
            value = jiter.from_json(text, partial_mode=reply.reason is FinishReason.LENGTH)
            assert isinstance(value, dict)
        after = request([5], sampling=asking(KINDS[3][0], temperature=0.0), ignore_eos=False)
        assert tokenizer.decode((await verifier.generate(after)).tokens) in CHOICES
        assert verifier.used == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("right_ones", [0, 1, 2, 3])
async def test_the_mask_is_right_after_a_draft_run_is_cut(
    tiny: Path, prompts: list[list[int]], right_ones: int
) -> None:
    """A run of right tokens, cut by a wrong one that the grammar allows or forbids; more come after it."""
    answers: dict[tuple[int, ...], list[int]] = {}

    def spoil(done: int, right: list[int]) -> list[int]:
        wrong = [2, 34, 65, 300][done % 4]
        return [*right[:right_ones], wrong, *right[right_ones + 1 :]]

    grammar = KINDS[1][0]
    wanted = [
        request(
            prompt, sampling=asking(grammar, temperature=1.0, seed=i), max_tokens=30, speculation=speculation
        )
        for speculation in (OFF, None)
        for i, prompt in enumerate(prompts[:5])
    ]
    async with (
        scripted(ScriptedDrafter(knowing(answers, spoil))) as config,
        running(tiny, drafters={"s": config}) as verifier,
    ):
        off = await verifier.generate_all(wanted[:5])
        answers |= {tuple(one.prompt): tokens for one, tokens in zip(wanted, off, strict=False)}
        assert await verifier.generate_all(wanted[5:]) == off
        if right_ones:
            assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") > 0


@pytest.mark.usefixtures("patient")
async def test_each_branch_of_a_tree_has_masks_of_its_own(tiny: Path, prompts: list[list[int]]) -> None:
    answers: dict[tuple[int, ...], list[int]] = {}
    inner = knowing(answers, lambda _, right: right)

    def script(held: Held) -> list[Proposal]:
        (proposal,) = inner(held)
        assert isinstance(proposal, Proposal)
        ids, parents, above = [], [], -1
        for token in proposal.tree.token_ids:
            siblings = [other for other in (EOS_TOKEN_ID, 65, 300) if other != token]
            ids += [*siblings, token]
            parents += [above] * (len(siblings) + 1)
            first = len(ids) - 1 - len(siblings)
            ids += [token, 34] if token != 34 else [34]  # below a wrong sibling
            parents += [first, first] if token != 34 else [first]
            above = ids.index(token, first + len(siblings))
        return [held.propose((), tree=TokenTree(tuple(ids), tuple(parents)))]

    wanted = SpeculationParams(max_draft_tokens=24)
    async with (
        scripted(ScriptedDrafter(script)) as config,
        # Some of these trees are malformed by chance: they are dropped, and their rounds wait in vain.
        running(tiny, drafters={"s": config}, max_draft_tokens=24, patience_ms=300.0) as verifier,
    ):
        off = batch(prompts, OFF, max_tokens=24)
        expected = await verifier.generate_all(off)
        answers |= {tuple(one.prompt): tokens for one, tokens in zip(off, expected, strict=True)}
        grammars = [one for one in batch(prompts, wanted, max_tokens=24) if one.sampling.edits.grammar]
        kept = [
            tokens
            for one, tokens in zip(off, expected, strict=True)
            if one.sampling.edits.grammar is not None
        ]
        assert await verifier.generate_all(grammars) == kept
        assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") > 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("rule", [Acceptance.TOKEN, Acceptance.BLOCK])
@pytest.mark.parametrize("drafter", ["twin", "other"])
async def test_by_the_other_rules_too_the_output_fits_the_grammar(
    tiny: Path, tiny_draft: Path, prompts: list[list[int]], rule: Acceptance, drafter: str
) -> None:
    wanted = batch(prompts, SpeculationParams(acceptance=rule))
    model = {"twin": tiny, "other": tiny_draft}[drafter]
    async with (
        real_drafter(method="draft_model", model=str(model)) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        check(tiny, wanted, await replies(verifier, wanted))
        if drafter == "twin":
            assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") > 0


@pytest.mark.usefixtures("patient")
async def test_a_session_that_had_to_give_way_goes_on_in_its_grammar(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with scripted(ScriptedDrafter(illegal)) as config:
        async with running(tiny, drafters={"s": config}) as verifier:
            off = [reply.tokens for reply in await replies(verifier, batch(prompts, OFF))]
        async with running(tiny, drafters={"s": config}, pool_tokens=256, block_size=16) as verifier:
            assert [reply.tokens for reply in await replies(verifier, batch(prompts))] == off
            assert verifier.metric("outrider_num_preemptions_total") > 0


async def test_ignore_eos_goes_on_with_end_tokens_once_the_grammar_has_ended(tiny: Path) -> None:
    sampling = asking(Grammar(GrammarKind.CHOICE, '["no"]'), temperature=1.0, seed=1)
    async with running(tiny) as verifier:
        reply = await verifier.generate(request([7], sampling=sampling, max_tokens=9, ignore_eos=True))
    text = Tokenizer.from_file(str(tiny / "tokenizer.json")).decode(reply.tokens, skip_special_tokens=False)
    assert text == "no" + "<|im_end|>" * (9 - len("no")) or text.startswith("no<|im_end|>")
    assert reply.reason is FinishReason.LENGTH and len(reply.tokens) == 9


@pytest.mark.parametrize("cut", [1, 2, 5, 11])
async def test_a_session_from_the_store_goes_on_in_its_grammar(
    tiny: Path, prompts: list[list[int]], cut: int
) -> None:
    store = MemoryStore()
    sampling = asking(KINDS[1][0], temperature=1.0, seed=3)
    async with running(tiny, store=store) as verifier:
        whole = (await verifier.generate(request(prompts[3], sampling=sampling, max_tokens=30))).tokens
        record = SessionRecord("s", tuple(prompts[3]), sampling, StopParams(30), tokens=tuple(whole[:cut]))
        await store.create(record)
        events = [event async for event in verifier.resume("s", cut)]
    assert [t for event in events if isinstance(event, SessionTokens) for t in event.token_ids] == whole[cut:]
