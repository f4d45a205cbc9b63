"""Suffix decoding behind the real service: tenants, trees, many sessions, hostile commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.drafting.lookup import method
from outrider.wire.convert.drafter import drafter_info_from_proto, drafter_info_request
from outrider.wire.messages import AdvanceDraft, CloseDraft, OpenDraft, Stale
from outrider.wire.v1 import drafter_pb2 as pb
from tests.integration.drafting.conftest import Link, RunningDrafter

Start = Callable[..., Awaitable[RunningDrafter]]
GREEDY = SamplingParams(temperature=0.0)
TEXT = tuple(range(100, 160))


@pytest.fixture
async def drafter(start: Start) -> RunningDrafter:
    return await start(
        method="suffix", suffix_shared=True, suffix_tokens=1024, tree="dynamic", max_draft_tokens=16
    )


async def draft(
    link: Link, session_id: str, tokens: tuple[int, ...], tenant: str, nodes: int = 8
) -> Proposal:
    command = OpenDraft(session_id, 1, tokens, GREEDY, 4, tenant=tenant, draft_nodes=nodes, prompt_len=2)
    proposal = await link.ask(command)
    assert isinstance(proposal, Proposal), proposal
    return proposal


async def serve(link: Link, session_id: str, text: tuple[int, ...], tenant: str) -> None:
    """A whole session."""
    await draft(link, session_id, (1, 2), tenant)
    for start in range(0, len(text), 6):
        advance = AdvanceDraft(session_id, 1, 2 + start, text[start : start + 6], 0, 4, draft_nodes=8)
        assert isinstance(await link.ask(advance), Proposal)
    await link.send(CloseDraft(session_id, 1))


async def test_info(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        info = drafter_info_from_proto(await link.client.GetInfo(drafter_info_request()))
    assert (info.method, info.features, info.max_draft_tokens) == ("suffix", (), 16)
    assert info.model.tokenizer_fingerprint == ""


async def test_served_text_goes_to_its_tenant_over_any_stream(drafter: RunningDrafter) -> None:
    async with drafter.link() as one, drafter.link() as other:
        await serve(one, "s", TEXT, "a")
        await one.load(lambda load: load.sessions == 0)
        found = await draft(other, "s", (7, *TEXT[:9]), "a")
        assert found.tree.token_ids == TEXT[9:13]
        assert len(found.tree.confidences) == 4 and all(0 < one < 1 for one in found.tree.confidences)
        for number, tenant in enumerate(("", "b", "A", "a\x00", "a ")):
            assert len((await draft(other, f"t{number}", (7, *TEXT[:9]), tenant)).tree) == 0


async def test_a_tree_over_the_wire(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        await serve(link, "s", (*TEXT[:9], 5, 6, 7, 8), "a")
        await serve(link, "t", (*TEXT[:9], 9, 6, 7, 8), "a")
        tree = (await draft(link, "u", (3, *TEXT[:9]), "a")).tree
        tree.validate(vocab_size=1000, max_nodes=8)
        assert not tree.is_chain and {tree.token_ids[0], tree.token_ids[1]} == {5, 9}
        assert (await draft(link, "v", (3, *TEXT[:9]), "a", nodes=0)).tree.is_chain


async def test_many_sessions_of_many_tenants_at_once(drafter: RunningDrafter) -> None:
    async def stream(number: int) -> None:
        text = tuple(range(1000 * number, 1000 * number + 30))
        async with drafter.link() as link:
            for round_ in range(8):
                await serve(link, f"s{round_}", text, f"tenant {number}")
            found = await draft(link, "last", (7, *text[:9]), f"tenant {number}")
            assert found.tree.token_ids == text[9:13]
            strange = await draft(link, "strange", (7, *text[:9]), "nobody")
            assert len(strange.tree) == 0

    await asyncio.gather(*(stream(number) for number in range(1, 9)))
    async with drafter.link() as watcher:
        assert (await watcher.load(lambda load: load.sessions == 0)).kv_usage == 0


async def test_a_flood_of_one_tenant_only_pushes_others_out(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        await serve(link, "s", TEXT, "a")
        for number in range(40):
            await serve(link, f"flood{number}", tuple(range(5000, 5060)), f"hostile {number}")
        assert len((await draft(link, "u", (7, *TEXT[:9]), "a")).tree) == 0
        await serve(link, "v", TEXT, "a")
        assert (await draft(link, "w", (7, *TEXT[:9]), "a")).tree.token_ids == TEXT[9:13]


async def test_a_tenant_that_is_no_name_costs_its_session_only(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        await draft(link, "good", (1, 2, 1, 2), "a")
        await link.send(
            pb.DraftCommand(
                session_id="bad",
                epoch=1,
                open=pb.OpenSession(token_ids=[1], sampling={"seed": 1}, tenant="x" * 257),
            )
        )
        refused = await link.next()
        assert isinstance(refused, Stale) and refused.reason is StaleReason.INVALID
        assert refused.session_id == "bad" and "tenant" in refused.detail
        assert isinstance(await link.ask(AdvanceDraft("good", 1, 4, (1,), 0, 2)), Proposal)


async def test_a_long_prompt_does_not_hold_up_others(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method, "TOKENS_PER_STEP", 64)
    drafter = await start(method="suffix", suffix_shared=True, suffix_tokens=200_000)
    async with drafter.link() as link:
        await link.send(
            OpenDraft("long", 1, tuple(range(50_000)), GREEDY, 4),
            OpenDraft("short", 1, (1, 2, 1, 2), GREEDY, 4),
        )
        first, second = await link.next(), await link.next()
        assert isinstance(first, Proposal) and first.session_id == "short"
        assert isinstance(second, Proposal) and second.session_id == "long"


async def test_sessions_that_do_not_fit_are_turned_away(start: Start) -> None:
    drafter = await start(method="suffix", suffix_tokens=1024)
    async with drafter.link() as link:
        refused = await link.ask(OpenDraft("long", 1, tuple(range(2000)), GREEDY, 4))
        assert isinstance(refused, Stale) and refused.reason is StaleReason.TOO_LONG
        assert isinstance(await link.ask(OpenDraft("short", 1, (1, 2, 1, 2), GREEDY, 4)), Proposal)
