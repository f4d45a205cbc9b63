"""A grammar that cannot be followed is its own session's trouble: told early, and of no effect on others."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.errors import InvalidRequestError
from outrider.core.params import (
    Grammar,
    GrammarKind,
    LogitEdits,
    SamplingParams,
    SpeculationParams,
    StopParams,
)
from outrider.core.sessions import SessionRecord
from outrider.sessions.memory import MemoryStore
from outrider.structured.dialects import library_grammar
from outrider.wire.messages import SessionTokens
from tests.integration.verifying.grammar_cases import (
    KINDS,
    asking,
    vocabulary,
)
from tests.integration.verifying.harness import OFF, real_drafter, request, running, until


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


async def test_a_grammar_that_takes_too_long_to_compile_is_refused_and_its_id_is_free(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def slow(grammar: Grammar) -> str:
        gate.wait(60)
        return library_grammar(grammar)

    monkeypatch.setattr("outrider.structured.compiler.library_grammar", slow)
    monkeypatch.setattr("outrider.verifying.compiling.COMPILE_S", 0.2)
    wanted = request([5], sampling=asking(KINDS[2][0], temperature=0.0), max_tokens=5)
    async with running(tiny) as verifier:
        with pytest.raises(InvalidRequestError, match="compile"):
            await verifier.generate(wanted)
        assert len((await verifier.generate(request([5], max_tokens=8))).tokens) == 8
        gate.set()
        monkeypatch.setattr("outrider.verifying.compiling.COMPILE_S", 30.0)
        assert (await verifier.generate(wanted)).tokens


async def test_a_client_that_goes_away_while_its_grammar_is_compiled_leaves_nothing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun = threading.Event(), threading.Event()

    def slow(grammar: Grammar) -> str:
        begun.set()
        gate.wait(60)
        return library_grammar(grammar)

    monkeypatch.setattr("outrider.structured.compiler.library_grammar", slow)
    wanted = request([5], sampling=asking(KINDS[2][0], temperature=0.0), max_tokens=5)
    async with running(tiny) as verifier:
        first = asyncio.ensure_future(verifier.generate(wanted))
        second = asyncio.ensure_future(verifier.generate(replace(wanted, session_id="another")))
        await until(begun.is_set)
        first.cancel()
        await asyncio.wait([first])
        gate.set()
        assert (await second).tokens  # it waited for the same grammar
        await until(lambda: not verifier.replica.servicer._arrivals)
        assert verifier.used == 0 and not len(verifier.replica.streams)
