"""A session drafts through several drafters: the same tokens as without, whatever becomes of each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outrider.core.errors import InvalidRequestError
from outrider.core.params import Acceptance, SamplingParams, SpeculationParams
from outrider.core.rounds import StaleReason
from outrider.core.sessions import DrafterStats, SpeculationStats
from outrider.core.trees import TokenTree
from outrider.telemetry import names
from outrider.telemetry.tracing import Tracing
from outrider.wire.messages import AdvanceDraft, DraftEvent, OpenDraft, Stale
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
)
from tests.integration.verifying.scripted import (
    CloseStreamError,
    Held,
    Script,
    ScriptedDrafter,
    knowing,
    scripted,
)

VOCAB = 512
SAMPLINGS = [GREEDY, sampled(3), sampled(11, top_p=0.9)]


def named(drafter: str, **more: Any) -> SpeculationParams:
    return SpeculationParams(drafter=drafter, **more)


def stats_of(reply: Reply) -> SpeculationStats:
    assert reply.finished is not None
    return reply.finished.speculation


def by_name(reply: Reply) -> dict[str, DrafterStats]:
    return {one.name: one for one in stats_of(reply).drafters}


@asynccontextmanager
async def verifier_of(
    tiny: Path, scripts: dict[str, Script], **own: Any
) -> AsyncIterator[tuple[Verifier, dict[str, ScriptedDrafter]]]:
    """A verifier with a scripted drafter for each script."""
    drafters = {name: ScriptedDrafter(script) for name, script in scripts.items()}
    async with AsyncExitStack() as stack:
        configs = {
            name: await stack.enter_async_context(scripted(drafter)) for name, drafter in drafters.items()
        }
        yield await stack.enter_async_context(running(tiny, drafters=configs, **own)), drafters


async def answers_of(
    tiny: Path, prompts: Sequence[Sequence[int]], sampling: SamplingParams
) -> dict[Any, Any]:
    """What each prompt leads to without speculation."""
    async with running(tiny) as verifier:
        tokens = await verifier.generate_all(
            [request(p, sampling=sampling, max_tokens=40, speculation=OFF) for p in prompts]
        )
    return {tuple(prompt): own for prompt, own in zip(prompts, tokens, strict=True)}


def spoiled(when: Callable[[int], bool]) -> Callable[[int, list[int]], list[int]]:
    """Right but for the lengths that `when` tells: there the first token is wrong."""

    def spoil(length: int, right: list[int]) -> list[int]:
        return [(right[0] + 1) % VOCAB, *right[1:]] if right and when(length) else right

    return spoil


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded", "top_p"])
async def test_two_that_know_different_things_are_merged(
    tiny: Path, prompts: list[list[int]], sampling: SamplingParams
) -> None:
    answers = await answers_of(tiny, prompts, sampling)
    scripts = {
        "even": knowing(answers, spoiled(lambda length: length % 2 == 1)),
        "odd": knowing(answers, spoiled(lambda length: length % 2 == 0)),
    }
    async with verifier_of(tiny, scripts, max_sessions=16) as (verifier, _):
        replies = await asyncio.gather(
            *(verifier.generate(request(p, sampling=sampling, max_tokens=40)) for p in prompts)
        )
        for prompt, reply in zip(prompts, replies, strict=True):
            stats, own = stats_of(reply), by_name(reply)
            assert reply.tokens == answers[tuple(prompt)]
            assert (stats.drafter, set(own)) == ("fused", {"even", "odd"})
            assert all(one.asked >= 2 and one.proposals for one in own.values())
            assert stats.accepted_tokens == sum(run.accepted for run in reply.runs) > 0
            # Each accepted token had been proposed by one of them, at least.
            assert sum(one.accepted_tokens for one in own.values()) >= stats.accepted_tokens
        accepted = sum(stats_of(reply).accepted_tokens for reply in replies)
        counted = verifier.metric("outrider_drafter_tokens_accepted_total")
        assert counted == sum(one.accepted_tokens for reply in replies for one in by_name(reply).values())
        assert counted >= accepted
        assert verifier.metric("outrider_drafter_rounds_asked_total", drafter="even") == sum(
            by_name(reply)["even"].asked for reply in replies
        )


@pytest.mark.usefixtures("patient")
async def test_merged_trees_never_reach_past_the_end_or_the_budget(
    tiny: Path, prompts: list[list[int]]
) -> None:
    answers = await answers_of(tiny, prompts, GREEDY)

    def bushy(held: Held) -> list[DraftEvent]:
        """A right chain with a wrong sibling at each node."""
        (chain,) = knowing(answers, lambda _, right: right)(held)
        right = chain.tree.token_ids  # type: ignore[union-attr]
        tree = TokenTree(
            tuple(token for one in right for token in (one, (one + 1) % VOCAB)),
            tuple(parent for index in range(len(right)) for parent in (2 * index - 2, 2 * index - 2)),
        )
        tree = replace(tree, parents=tuple(max(parent, -1) for parent in tree.parents))
        return [held.propose((), tree=tree)]

    scripts: dict[str, Script] = {
        "bushy": bushy,
        "wrong": lambda held: [held.propose([(held.tokens[-1] + 7) % VOCAB] * held.wanted)],
    }
    async with verifier_of(tiny, scripts, tree_nodes=6) as (verifier, _):
        for most in (1, 2, 5, 40):
            reply = await verifier.generate(request(prompts[3], max_tokens=most))
            assert reply.tokens == answers[tuple(prompts[3])][:most]
            assert stats_of(reply).draft_tokens <= 6 * stats_of(reply).drafts
        few = await verifier.generate(
            request(prompts[3], max_tokens=40, speculation=named("fused", max_draft_tokens=2))
        )
        assert few.tokens == answers[tuple(prompts[3])]
        assert 0 < stats_of(few).draft_tokens <= 2 * stats_of(few).drafts


def hostile(held: Held) -> list[DraftEvent | pb.DraftEvent]:
    """Another trick each time."""
    length, ids = len(held.tokens), [5, 6]
    tricks: list[list[DraftEvent | pb.DraftEvent]] = [
        [held.propose(ids, epoch=held.epoch + 1)],
        [held.propose(ids, base_len=length + 1)],
        [held.propose(ids, session_id="nobody")],
        [held.propose([VOCAB + 5])],
        [held.propose((), tree=TokenTree((5, 5), (-1, -1)))],
        [held.propose((), tree=TokenTree((5,), (0,)))],
        [held.propose([1] * 60)],
        [held.propose(ids), held.propose(ids)],
        [Stale(held.session_id, held.epoch, StaleReason.UNKNOWN)],
        [pb.DraftEvent()],
        [held.propose((), tree=TokenTree())],
    ]
    return tricks[length % len(tricks)]


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "seeded"])
async def test_a_hostile_one_costs_the_others_nothing(
    tiny: Path, prompts: list[list[int]], sampling: SamplingParams
) -> None:
    answers = await answers_of(tiny, prompts, sampling)
    scripts: dict[str, Script] = {"good": knowing(answers, lambda _, right: right), "bad": hostile}
    async with verifier_of(tiny, scripts, patience_ms=300.0, max_sessions=16) as (verifier, _):
        replies = await asyncio.gather(
            *(verifier.generate(request(p, sampling=sampling, max_tokens=40)) for p in prompts)
        )
        assert [reply.tokens for reply in replies] == [answers[tuple(p)] for p in prompts]
        assert sum(by_name(reply)["good"].accepted_tokens for reply in replies) > 0
        assert verifier.metric("outrider_proposals_dropped_total", drafter="bad") > 0
        assert verifier.metric("outrider_proposals_dropped_total", drafter="good") == 0
        assert verifier.used == 0


async def test_one_that_dies_in_mid_session_is_simply_missing(tiny: Path, prompts: list[list[int]]) -> None:
    answers = await answers_of(tiny, prompts, GREEDY)
    know, died = knowing(answers, lambda _, right: right), []

    def dying(held: Held) -> list[Any]:
        if len(held.tokens) > len(prompts[4]) + 3:
            died.append(held)
            raise CloseStreamError
        return list(know(held))

    one = knowing(answers, lambda _, right: right[:1])
    async with verifier_of(tiny, {"dying": dying, "lasting": one}) as (verifier, drafters):
        reply = await verifier.generate(request(prompts[4], max_tokens=40))
        again = await verifier.generate(request(prompts[4], max_tokens=40))
        assert reply.tokens == again.tokens == answers[tuple(prompts[4])] and died
        assert by_name(reply)["lasting"].accepted_tokens > 0
        assert drafters["lasting"].streams == 1


async def test_nobody_waits_for_a_silent_one_for_ever(tiny: Path, prompts: list[list[int]]) -> None:
    answers = await answers_of(tiny, prompts, GREEDY)
    scripts: dict[str, Script] = {
        "silent": lambda _: (),
        "good": knowing(answers, lambda _, right: right[:1]),
    }
    own = {"patience_ms": 30.0, "max_misses": 2, "rest_ms": 60_000.0}
    async with verifier_of(tiny, scripts, **own) as (verifier, _):
        reply = await verifier.generate(request(prompts[4], max_tokens=40))
        assert reply.tokens == answers[tuple(prompts[4])]
        own_stats = by_name(reply)
        assert own_stats["silent"].missed == 2 and own_stats["silent"].proposals == 0
        assert verifier.metric("outrider_drafter_link_state", drafter="silent", state="resting") == 1


@pytest.mark.usefixtures("patient")
async def test_a_request_chooses_among_them(tiny: Path, prompts: list[list[int]]) -> None:
    def echo(held: Held) -> list[DraftEvent]:
        return [held.propose([held.tokens[-1]] * held.wanted)]

    scripts: dict[str, Script] = {"a": echo, "b": echo, "c": echo}
    chosen = {"": "abc", "fused": "abc", "off": "", "b": "b", "c+a": "ac", "a+b+c": "abc"}
    async with verifier_of(tiny, scripts) as (verifier, drafters):
        for drafter, letters in chosen.items():
            wanted = request(prompts[2], speculation=named(drafter))
            reply = await verifier.generate(wanted)
            heard = {
                name
                for name, own in drafters.items()
                if any(command.session_id == wanted.session_id for command in own.commands)
            }
            assert heard == set(letters) == set(by_name(reply))
            label = letters if len(letters) < 2 else "fused"
            assert (stats_of(reply).drafter, bool(stats_of(reply).drafts)) == (label, bool(letters))
        for drafter in ("d", "a+d", "a+", "+", "fused+a", "off+a"):
            with pytest.raises(InvalidRequestError, match="a, b, c, fused, off") as caught:
                await verifier.generate(request(prompts[2], speculation=named(drafter)))
            assert caught.value.field == "speculation.drafter"


@pytest.mark.parametrize(
    ("default", "drafter", "letters"),
    [
        ("", "", "ab"),
        ("b", "", "b"),
        ("fused", "", "ab"),
        ("b", "fused", "ab"),
        ("a+b", "", "ab"),
        ("b", "a", "a"),
    ],
)
async def test_the_configuration_has_a_default(
    tiny: Path, prompts: list[list[int]], default: str, drafter: str, letters: str
) -> None:
    scripts: dict[str, Script] = {"a": lambda _: (), "b": lambda _: ()}
    async with verifier_of(tiny, scripts, drafter=default, patience_ms=5.0) as (verifier, _):
        reply = await verifier.generate(request(prompts[0], max_tokens=4, speculation=named(drafter)))
        assert set(by_name(reply)) == set(letters)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("rule", [Acceptance.TOKEN, Acceptance.BLOCK])
async def test_by_the_other_rules_a_session_has_one_drafter(
    tiny: Path, prompts: list[list[int]], rule: Acceptance
) -> None:
    """Who is asked must not depend on tokens that were drawn."""

    def echo(held: Held) -> list[DraftEvent]:
        return [held.propose([held.tokens[-1]] * held.wanted)]

    async with verifier_of(tiny, {"a": echo, "b": echo}) as (verifier, drafters):
        for seed, drafter in enumerate(("", "fused", "b", "a+b")):
            speculation = named(drafter, acceptance=rule)
            wanted = request(prompts[2], sampling=sampled(seed), speculation=speculation)
            reply = await verifier.generate(wanted)
            heard = {
                name
                for name, own in drafters.items()
                if any(command.session_id == wanted.session_id for command in own.commands)
            }
            assert len(heard) == 1 and heard == set(by_name(reply))
            assert drafter != "b" or heard == {"b"}


@pytest.mark.usefixtures("patient")
async def test_round_spans_tell_of_each_drafter(tiny: Path, prompts: list[list[int]]) -> None:
    answers = await answers_of(tiny, prompts, GREEDY)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    scripts: dict[str, Script] = {
        "right": knowing(answers, lambda _, right: right),
        "wrong": lambda held: [held.propose([(held.tokens[-1] + 9) % VOCAB])],
    }
    traces = Tracing(provider.get_tracer("test"), provider)
    async with verifier_of(tiny, scripts, traces=traces) as (verifier, _):
        own = by_name(await verifier.generate(request(prompts[3], max_tokens=30)))
    told = {name: DrafterStats(name) for name in scripts}
    for span in exporter.get_finished_spans():
        if span.name != names.SPAN_ROUND:
            continue
        assert span.attributes is not None
        columns = [
            cast(Sequence[Any], span.attributes[key])
            for key in (
                names.ATTR_DRAFTERS,
                names.ATTR_DRAFTERS_PROPOSED,
                names.ATTR_DRAFTERS_DRAFTED,
                names.ATTR_DRAFTERS_ACCEPTED,
            )
        ]
        for name, proposed, drafted, accepted in zip(*columns, strict=True):
            told[name].asked += 1
            told[name].proposals += proposed >= 0
            told[name].draft_tokens += drafted
            told[name].accepted_tokens += accepted
    assert told == own


@pytest.mark.usefixtures("patient")
async def test_each_hears_every_committed_token_once_and_in_order(
    tiny: Path, prompts: list[list[int]]
) -> None:
    """Also the one that is seldom asked: it hears of several rounds in one command."""
    answers = await answers_of(tiny, prompts, GREEDY)
    scripts: dict[str, Script] = {
        "good": knowing(answers, lambda _, right: right),
        "useless": lambda held: [held.propose([(held.tokens[-1] + 9) % VOCAB])],
    }
    async with verifier_of(tiny, scripts, draft_length=1) as (verifier, drafters):
        wanted = request(prompts[3], max_tokens=40)
        reply = await verifier.generate(wanted)
    whole = [*wanted.prompt, *reply.tokens]
    for drafter in drafters.values():
        told: list[int] = []
        for command in drafter.commands:
            if isinstance(command, OpenDraft):
                told = list(command.token_ids)
            elif isinstance(command, AdvanceDraft):
                assert command.base_len == len(told)
                assert command.accepted <= len(command.token_ids)
                told += command.token_ids
        assert told == whole[: len(told)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "seeded"])
async def test_real_drafters_together(
    tiny: Path, tiny_draft: Path, prompts: list[list[int]], sampling: SamplingParams
) -> None:
    prompts = [[*prompt, *prompt] for prompt in prompts]  # something to look up
    wanted = [request(p, sampling=sampling, max_tokens=30) for p in prompts]
    async with (
        real_drafter(model=str(tiny)) as twin,
        real_drafter(model=str(tiny_draft), tree="dynamic", tree_nodes=8) as other,
        real_drafter(method="prompt_lookup", tree="dynamic", tree_nodes=8) as lookup,
        running(tiny, drafters={"twin": twin, "other": other, "lookup": lookup}, max_sessions=16) as verifier,
    ):
        off = await verifier.generate_all(
            [replace(one, session_id=f"off{i}", speculation=OFF) for i, one in enumerate(wanted)]
        )
        replies = await asyncio.gather(*(verifier.generate(one) for one in wanted))
        assert [reply.tokens for reply in replies] == off
        assert sum(by_name(reply)["twin"].accepted_tokens for reply in replies) > 0
        assert verifier.used == 0
