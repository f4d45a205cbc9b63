"""Structured output: the grammar holds at every token, whatever drafters propose."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jiter
import pytest
from tokenizers import Tokenizer

from outrider.core.errors import InvalidRequestError
from outrider.core.params import (
    Grammar,
    GrammarKind,
    LogitEdits,
    SamplingParams,
    SpeculationParams,
    StopParams,
)
from outrider.core.rounds import Proposal
from outrider.core.sessions import FinishReason, SessionRecord
from outrider.core.trees import TokenTree
from outrider.sessions.memory import MemoryStore
from outrider.wire.messages import SessionRequest, SessionTokens
from tests.integration.verifying.harness import OFF, Reply, Verifier, real_drafter, request, running
from tests.integration.verifying.scripted import Held, ScriptedDrafter, knowing, scripted
from tests.tiny_models import EOS_TOKEN_ID

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "bb"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # a random model would go on with blanks
}
CHOICES = ["a first choice", "a second one", "none"]
EBNF = 'root ::= item ("," item)*\nitem ::= [a-c]+ | "(" root ")"'
EMAIL = r"[a-z]{2,8}@[a-z]{2,8}\.(com|org)"


def is_person(value: Any) -> bool:
    return (
        list(value) == ["name", "age", "tags"]
        and re.fullmatch("[A-Z][a-z]{1,6}", value["name"]) is not None
        and type(value["age"]) is int
        and 0 <= value["age"] <= 99
        and 1 <= len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "bb"}
    )


def is_list(text: str) -> bool:
    """Is it what EBNF describes?"""
    while (shorter := re.sub(r"\([a-c]+(,[a-c]+)*\)", "c", text)) != text:
        text = shorter
    return re.fullmatch("[a-c]+(,[a-c]+)*", text) is not None


KINDS: list[tuple[Grammar, Callable[[str], bool]]] = [
    (Grammar(GrammarKind.JSON_OBJECT), lambda text: isinstance(json.loads(text), dict)),
    (Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), lambda text: is_person(json.loads(text))),
    (Grammar(GrammarKind.REGEX, EMAIL), lambda text: re.fullmatch(EMAIL, text) is not None),
    (Grammar(GrammarKind.CHOICE, json.dumps(CHOICES)), lambda text: text in CHOICES),
    (Grammar(GrammarKind.GRAMMAR, EBNF), is_list),
]
FITS = dict(KINDS)
SAMPLINGS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.0, "seed": 6, "top_p": 0.9},
]


def asking(grammar: Grammar, **sampling: Any) -> SamplingParams:
    return SamplingParams(**sampling, edits=LogitEdits(grammar=grammar))


def batch(
    prompts: list[list[int]], speculation: SpeculationParams | None = None, *, max_tokens: int = 64
) -> list[SessionRequest]:
    """Every kind with every sampling, and sessions without a grammar between them."""
    pairs = [(grammar, sampling) for grammar, _ in KINDS for sampling in SAMPLINGS]
    wanted = []
    for index, (grammar, sampling) in enumerate(pairs):
        prompt = [*prompts[index % 4], index + 3]
        for own in (asking(grammar, **sampling), SamplingParams(**sampling))[: 1 + (index % 4 == 0)]:
            wanted.append(
                request(
                    prompt,
                    sampling=own,
                    max_tokens=max_tokens,
                    speculation=speculation,
                    ignore_eos=own.edits.grammar is None,
                )
            )
    return wanted


async def replies(verifier: Verifier, wanted: list[SessionRequest]) -> list[Reply]:
    return await asyncio.gather(*(verifier.generate(one) for one in wanted))


def check(folder: Path, wanted: list[SessionRequest], got: list[Reply]) -> None:
    """Outputs that ended by themselves fit their grammars."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ended = set()
    for one, reply in zip(wanted, got, strict=True):
        grammar = one.sampling.edits.grammar
        text = tokenizer.decode(reply.tokens, skip_special_tokens=False)
        if grammar is not None and reply.reason is FinishReason.STOP:
            ended.add(grammar.kind)
            assert FITS[grammar](text), text
        elif grammar is not None and grammar.kind in (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA):
            jiter.from_json(text.encode(), partial_mode=True)
    assert ended >= set(GrammarKind) - {GrammarKind.JSON_OBJECT}


def vocabulary(folder: Path) -> dict[str, int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()


def illegal(held: Held) -> list[Proposal]:
    """Anything, mostly not what a grammar allows: special tokens, padding, the end, words."""
    rng = random.Random(len(held.tokens))
    drawn = [rng.choice((0, 1, EOS_TOKEN_ID, rng.randrange(512), rng.randrange(300, 512))) for _ in range(12)]
    return [held.propose(drawn[: held.wanted])]


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
        running(tiny, drafters={"s": config}, max_draft_tokens=24) as verifier,
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


async def test_a_session_whose_tokens_do_not_fit_its_grammar_fails_alone(tiny: Path) -> None:
    store = MemoryStore()
    sampling = asking(KINDS[3][0], temperature=0.0)
    await store.create(SessionRecord("s", (7, 8), sampling, StopParams(30), tokens=(300, 301)))
    async with running(tiny, store=store) as verifier:
        other = asyncio.ensure_future(verifier.generate(request([5], max_tokens=30)))
        with pytest.raises(Exception, match="grammar"):
            _ = [event async for event in verifier.resume("s", 2)]
        assert len((await other).tokens) == 30
        assert verifier.used == 0


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object", "minProperties": 1, "not": {}}'), "not"),
        (Grammar(GrammarKind.REGEX, "a("), "unclosed group"),
        (Grammar(GrammarKind.GRAMMAR, "nothing"), "neither Lark"),
        (Grammar(GrammarKind.CHOICE, '["a", 2]'), "list"),
    ],
)
async def test_a_bad_grammar_is_refused_before_any_token_and_nobody_else_notices(
    tiny: Path, grammar: Grammar, said: str
) -> None:
    async with running(tiny) as verifier:
        other = asyncio.ensure_future(verifier.generate(request([5], max_tokens=30)))
        bad = request([6], sampling=asking(grammar, temperature=0.0))
        with pytest.raises(InvalidRequestError, match=said) as caught:
            await anext(verifier.stream(bad))
        assert str(caught.value.field).endswith("grammar")
        assert len((await other).tokens) == 30
        assert not len(verifier.replica.streams)
        await verifier.generate(request([6], max_tokens=3, session_id=bad.session_id))  # its id is free


async def test_a_grammar_that_becomes_too_complex_ends_its_own_session_at_the_same_token(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ambiguous grammar whose parse grows with its output, until the library gives up."""
    monkeypatch.setattr("outrider.structured.compiler._MOST_ITEMS", 200)
    grammar = Grammar(GrammarKind.GRAMMAR, 'start: s "!"\ns: s s s | s s | "a" | "b" s | ""')
    never = tuple((id, -100.0) for text, id in vocabulary(tiny).items() if "!" in text)

    async def until_it_fails(speculation: SpeculationParams | None) -> list[int]:
        tokens: list[int] = []
        edits = LogitEdits(grammar=grammar, logit_bias=never)
        own = SamplingParams(temperature=1.0, seed=4, edits=edits)
        with pytest.raises(InvalidRequestError, match="complex"):
            async for event in verifier.stream(
                request([6], sampling=own, max_tokens=200, speculation=speculation)
            ):
                if isinstance(event, SessionTokens):
                    tokens += event.token_ids
        return tokens

    async with (
        real_drafter(method="draft_model", model=str(tiny)) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        other = asyncio.ensure_future(verifier.generate(request([5], max_tokens=60)))
        off = await until_it_fails(OFF)
        assert off and await until_it_fails(None) == off
        assert len((await other).tokens) == 60
        assert verifier.used == 0
