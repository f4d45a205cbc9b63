"""A drafter that asks for the target's hidden states gets every row, once, in order, with the right bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.core.params import SpeculationParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.core.trees import TokenTree
from outrider.wire.messages import AdvanceDraft, OpenDraft, Stale
from tests.integration.verifying.feature_log import NAMES, check, needing, openings, plain_rows
from tests.integration.verifying.harness import OFF, Verifier, request, running, sampled
from tests.integration.verifying.scripted import (
    CloseStreamError,
    Held,
    ScriptedDrafter,
    knowing,
    scripted,
)
from tests.tiny_models import make_tiny

pytestmark = pytest.mark.usefixtures("patient")
Answers = dict[tuple[int, ...], list[int]]


def partly(length: int, right: list[int]) -> list[int]:
    """Right up to a token that wanders."""
    wrong = length % 4
    return [(token + (index == wrong)) % 512 for index, token in enumerate(right)]


def branching(answers: Answers) -> Callable[[Held], list[Any]]:
    """Right tokens, each next to a wrong sibling that comes first."""
    chain = knowing(answers, lambda _, right: right)

    def script(held: Held) -> list[Any]:
        (proposal,) = chain(held)
        assert isinstance(proposal, Proposal)
        ids: list[int] = []
        parents: list[int] = []
        above = -1
        for token in proposal.tree.token_ids[: max(1, held.wanted // 2)]:
            ids += [(token + 1) % 512, token]
            parents += [above, above]
            above = len(ids) - 1
        return [held.propose((), tree=TokenTree(tuple(ids), tuple(parents)))]

    return script


async def answers_of(verifier: Verifier, prompts: Iterable[list[int]], tokens: int) -> Answers:
    """What the target says by itself."""
    wanted = [
        request(p, sampling=sampled(i), max_tokens=tokens, speculation=OFF) for i, p in enumerate(prompts)
    ]
    told = await verifier.generate_all(wanted)
    return {one.prompt: tokens for one, tokens in zip(wanted, told, strict=True)}


async def compare(
    model: Path,
    prompts: list[list[int]],
    script: Callable[[Answers], Callable[[Held], Iterable[Any]]],
    *,
    tokens: int = 40,
    **settings: Any,
) -> tuple[ScriptedDrafter, Verifier]:
    """Run with a drafter that needs features: same tokens as without, every row right."""
    drafter = ScriptedDrafter(lambda _: (), info=needing())
    plain = {key: value for key, value in settings.items() if key != "pool_tokens"}
    async with running(model, **plain) as verifier:
        answers = await answers_of(verifier, prompts, tokens)
    drafter.script = script(answers)
    async with scripted(drafter) as config, running(model, drafters={"s": config}, **settings) as verifier:
        got = await verifier.generate_all(
            [request(p, sampling=sampled(i), max_tokens=tokens) for i, p in enumerate(prompts)]
        )
        assert got == list(answers.values())
        assert verifier.used == 0
        logged = openings(drafter.commands)
        check(verifier.engine, logged)
        sent = sum(len(b.data) for c in drafter.commands for b in getattr(c, "features", ()))
        assert verifier.metric("outrider_drafter_feature_bytes_total", drafter="s") >= sent > 0
    return drafter, verifier


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("llama", "float32"), ("llama", "bfloat16"), ("gemma2", "bfloat16")]
)
async def test_rounds_and_prefill_chunks_carry_the_rows_of_a_plain_forward(
    tmp_path: Path, prompts: list[list[int]], kind: str, dtype: str, shape: str
) -> None:
    model = make_tiny(kind, tmp_path / kind, max_position=512)
    script = branching if shape == "tree" else lambda answers: knowing(answers, partly)
    drafter, verifier = await compare(
        model, prompts, script, dtype=dtype, prefill_chunk=32, draft_length=6, max_draft_tokens=12
    )
    logged = openings(drafter.commands)
    assert len(logged) == len(prompts) and all(opening.asked > 3 for opening in logged)
    assert verifier.metric("outrider_spec_decode_num_accepted_tokens_total") > 50
    # The rows of a prompt come chunk by chunk, not all at its end.
    longest = max(logged, key=lambda opening: len(opening.tokens)).session_id
    long = [c for c in drafter.commands if c.session_id == longest]
    assert sum(isinstance(c, AdvanceDraft) and not c.token_ids and bool(c.features) for c in long) >= 2


async def test_rows_of_a_cached_prefix_are_there_too(tiny: Path) -> None:
    prompt = [3 + i for i in range(100)]
    drafter = ScriptedDrafter(lambda _: (), info=needing())
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        answers = await answers_of(verifier, [prompt], 30)
        drafter.script = knowing(answers, partly)
        for _ in range(2):
            reply = await verifier.generate(request(prompt, sampling=sampled(0), max_tokens=30))
            assert reply.finished is not None and reply.finished.usage.cached_prompt_tokens >= 96
            assert reply.tokens == answers[tuple(prompt)]
        logged = openings(drafter.commands)
        assert len(logged) == 2 and all(opening.asked for opening in logged)
        check(verifier.engine, logged)


async def test_a_session_that_gives_way_goes_on_with_the_rows_that_come_next(
    tiny: Path, prompts: list[list[int]]
) -> None:
    drafter, verifier = await compare(
        tiny,
        prompts,
        lambda answers: knowing(answers, partly),
        tokens=60,
        pool_tokens=320,
        prefix_cache=False,
    )
    assert verifier.metric("outrider_num_preemptions_total") > 0
    assert len(openings(drafter.commands)) == len(prompts)  # the drafter held them all along


@pytest.mark.parametrize("way", ["restart", "unknown"])
async def test_who_opens_in_mid_session_gets_all_rows(
    tiny: Path, prompts: list[list[int]], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.verifying.features._PART_BYTES", 7 * 2 * 64 * len(NAMES))
    monkeypatch.setattr("outrider.verifying.links._FIRST_BACKOFF_S", 0.01)

    def script(answers: Answers) -> Callable[[Held], Iterable[Any]]:
        right, calls = knowing(answers, partly), count(1)

        def answer(held: Held) -> Iterable[Any]:
            if next(calls) % 9:
                return right(held)
            if way == "restart":
                raise CloseStreamError
            return [Stale(held.session_id, held.epoch, StaleReason.UNKNOWN)]

        return answer

    drafter, _ = await compare(tiny, prompts[3:], script, tokens=200)
    logged = openings(drafter.commands)
    assert len(logged) > len(prompts[3:])
    assert sum(opening.asked > 0 for opening in logged) > len(prompts[3:])
    # At most seven rows of each in a command, so an opening takes several.
    rows = [b.rows for c in drafter.commands if isinstance(c, OpenDraft | AdvanceDraft) for b in c.features]
    assert max(rows) == 7


async def test_a_drafter_that_takes_rows_slowly_is_asked_once_it_has_them(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = 2 * 64 * len(NAMES)
    monkeypatch.setattr("outrider.verifying.features._CREDIT_BYTES", 20 * row)
    monkeypatch.setattr("outrider.verifying.outgoing._TOLD_BYTES", 1)
    drafter, _ = await compare(tiny, prompts[-2:], lambda answers: knowing(answers, partly), tokens=200)
    assert any(opening.asked for opening in openings(drafter.commands))
    rows = [b.rows for c in drafter.commands for b in getattr(c, "features", ())]
    assert max(rows) <= 20


async def test_who_needs_the_last_row_only_gets_just_that(tiny: Path, prompts: list[list[int]]) -> None:
    drafter = ScriptedDrafter(lambda _: (), info=needing(["last_hidden"], last_only=True))
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, prefill_chunk=32) as verifier,
    ):
        answers = await answers_of(verifier, prompts, 30)
        verifier.engine.clear_prefix_cache()
        drafter.script = knowing(answers, partly)
        wanted = [request(p, sampling=sampled(i), max_tokens=30) for i, p in enumerate(prompts)]
        assert await verifier.generate_all(wanted) == list(answers.values())
        texts: dict[str, list[int]] = {}
        rows = 0
        for command in drafter.commands:
            if isinstance(command, OpenDraft):
                texts[command.session_id] = list(command.token_ids)
                assert command.features == ()
            elif isinstance(command, AdvanceDraft):
                text = texts[command.session_id]
                text += command.token_ids
                assert command.token_ids
                (block,) = command.features
                assert (block.name, block.rows, block.first_position) == ("last_hidden", 1, len(text) - 2)
                got = torch.frombuffer(bytearray(block.data), dtype=torch.bfloat16)
                want = plain_rows(verifier.engine, text[:-1], ["last_hidden"])["last_hidden"][-1]
                assert torch.equal(got, want)
                rows += 1
        assert rows > len(prompts) * 5


async def test_nobody_who_needs_none_is_sent_any(tiny: Path, prompts: list[list[int]]) -> None:
    plain = ScriptedDrafter(lambda _: (), info=replace(needing(()), last_feature_only=False))
    async with scripted(plain) as config, running(tiny, drafters={"s": config}) as verifier:
        await verifier.generate_all([request(p) for p in prompts])
        assert not any(getattr(command, "features", ()) for command in plain.commands)
        assert verifier.metric("outrider_drafter_feature_bytes_total") == 0
        assert not verifier.engine._features.names


async def test_needs_that_change_with_every_connection_change_no_token(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.verifying.links._FIRST_BACKOFF_S", 0.01)
    needs = [("last_hidden",), (), ("hidden_0", "hidden_2", "hidden_0"), ("hidden_1",) * 16]
    drafter = ScriptedDrafter(lambda _: (), info=needing(needs[0]))
    changes = count(1)

    def script(answers: Answers) -> Callable[[Held], Iterable[Any]]:
        right = knowing(answers, partly)

        def answer(held: Held) -> Iterable[Any]:
            if next(changes) % 7:
                return right(held)
            turn = drafter.streams % len(needs)
            drafter.info = needing(needs[turn], last_only=turn % 2 == 1)
            raise CloseStreamError

        return answer

    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        answers = await answers_of(verifier, prompts, 200)
        drafter.script = script(answers)
        wanted = [request(p, sampling=sampled(i), max_tokens=200) for i, p in enumerate(prompts)]
        assert await verifier.generate_all(wanted) == list(answers.values())
        assert drafter.streams > 2 and verifier.used == 0


@pytest.mark.parametrize("names", [("hidden_3",), ("hidden_-1",), ("hidden_00",), ("x" * 9,), ("",)])
async def test_needs_that_cannot_be_met_refuse_the_link(
    tiny: Path, prompts: list[list[int]], names: tuple[str, ...]
) -> None:
    drafter = ScriptedDrafter(lambda _: (), info=needing(names))
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, wait=False) as verifier,
    ):
        await verifier.linked("s", "refused")
        assert "needs features" in verifier.report("s").detail
        assert len((await verifier.generate(request(prompts[0]))).tokens) == 24
        assert drafter.commands == []


async def test_drafters_with_other_needs_share_a_verifier(tiny: Path, prompts: list[list[int]]) -> None:
    needs = {"one": ("hidden_0", "hidden_2"), "two": ("last_hidden", "hidden_2"), "none": ()}
    drafters = {name: ScriptedDrafter(lambda _: (), info=needing(names)) for name, names in needs.items()}
    async with AsyncExitStack() as stack:
        configs = {
            name: await stack.enter_async_context(scripted(drafter)) for name, drafter in drafters.items()
        }
        verifier = await stack.enter_async_context(running(tiny, drafters=configs, prefill_chunk=32))
        answers = await answers_of(verifier, prompts, 30)
        wanted = []
        for name, drafter in drafters.items():
            drafter.script = knowing(answers, partly)
            wanted += [
                request(p, sampling=sampled(i), max_tokens=30, speculation=SpeculationParams(drafter=name))
                for i, p in enumerate(prompts)
            ]
        assert await verifier.generate_all(wanted) == list(answers.values()) * 3
        for name, names in needs.items():
            logged = openings(drafters[name].commands, names)
            assert len(logged) == len(prompts)
            check(verifier.engine, logged, names)


async def test_several_drafters_of_one_session_each_get_their_rows(
    tiny: Path, prompts: list[list[int]]
) -> None:
    """Also those that are not asked each round, and in sessions that give way."""
    needs = {"one": ("hidden_0", "hidden_2"), "two": ("last_hidden",)}
    drafters = {name: ScriptedDrafter(lambda _: (), info=needing(names)) for name, names in needs.items()}
    async with AsyncExitStack() as stack:
        configs = {
            name: await stack.enter_async_context(scripted(drafter)) for name, drafter in drafters.items()
        }
        verifier = await stack.enter_async_context(
            running(tiny, drafters=configs, prefill_chunk=32, pool_tokens=320, prefix_cache=False)
        )
        answers = await answers_of(verifier, prompts, 50)
        drafters["one"].script = knowing(answers, partly)
        drafters["two"].script = knowing(answers, lambda _, right: [(token + 1) % 512 for token in right])
        before = verifier.metric("outrider_num_preemptions_total")
        wanted = [request(p, sampling=sampled(i), max_tokens=50) for i, p in enumerate(prompts)]
        assert await verifier.generate_all(wanted) == list(answers.values())
        assert verifier.metric("outrider_num_preemptions_total") > before
        for name, names in needs.items():
            check(verifier.engine, openings(drafters[name].commands, names), names)
