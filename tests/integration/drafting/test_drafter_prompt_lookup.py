"""Prompt lookup behind the real service: the stream's rules, without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from grpc import aio

from outrider.config.schema import DrafterConfig, OutriderConfig
from outrider.core.errors import ConfigError, ModelMismatchError
from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.drafting.server import serve
from outrider.wire import errors
from outrider.wire.convert.drafter import drafter_info_from_proto, drafter_info_request
from outrider.wire.messages import AdvanceDraft, CloseDraft, Draining, OpenDraft, Stale
from outrider.wire.v1 import drafter_pb2 as pb
from tests.integration.drafting.conftest import RunningDrafter

Start = Callable[..., Awaitable[RunningDrafter]]
GREEDY = SamplingParams(temperature=0.0)


def open_(session_id: str, tokens: tuple[int, ...], length: int = 4, epoch: int = 1) -> OpenDraft:
    return OpenDraft(session_id, epoch, tokens, GREEDY, length)


def advance(
    session_id: str, base: int, tokens: tuple[int, ...], length: int = 4, epoch: int = 1
) -> AdvanceDraft:
    return AdvanceDraft(session_id, epoch, base, tokens, 0, length)


def proposed(event: object) -> tuple[int, ...]:
    assert isinstance(event, Proposal), event
    return event.tree.token_ids


def reason(event: object) -> StaleReason:
    assert isinstance(event, Stale), event
    return event.reason


@pytest.fixture
async def drafter(start: Start) -> RunningDrafter:
    return await start(method="prompt_lookup", max_sessions=3, max_draft_tokens=8)


async def test_info(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        info = drafter_info_from_proto(await link.client.GetInfo(drafter_info_request()))
        assert (info.method, info.features, info.max_draft_tokens) == ("prompt_lookup", (), 8)
        assert info.model.tokenizer_fingerprint == ""
        assert info.instance_id
        with pytest.raises(aio.AioRpcError) as refused:
            await link.client.GetInfo(pb.DrafterGetInfoRequest(protocol_version=99))
        assert isinstance(errors.from_rpc_error(refused.value), ModelMismatchError)


async def test_rounds(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        first = await link.ask(open_("a", (1, 2, 3, 4, 5, 6, 1, 2)))
        assert proposed(first) == (3, 4, 5, 6)
        assert isinstance(first, Proposal) and (first.base_len, first.epoch) == (8, 1)
        assert proposed(await link.ask(advance("a", 8, (3, 9)))) == ()  # no match: answers at once
        # The most recent match, copied on as a loop; 100 is clamped to 8.
        assert proposed(await link.ask(advance("a", 10, (2, 3), length=100))) == (9, 2, 3, 9, 2, 3, 9, 2)


async def test_length_zero_keeps_up_and_proposes_nothing(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        await link.send(open_("a", (1, 2, 3, 1), length=0), advance("a", 4, (2,), length=0))
        assert proposed(await link.ask(advance("a", 5, (), length=2))) == (3, 1)


async def test_stale_answers(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        assert reason(await link.ask(advance("a", 3, (1,)))) is StaleReason.UNKNOWN
        await link.ask(open_("a", (1, 2, 3)))
        assert reason(await link.ask(advance("a", 4, (1,)))) is StaleReason.DIVERGED
        assert reason(await link.ask(advance("a", 3, (1,)))) is StaleReason.UNKNOWN  # dropped with it
        await link.ask(open_("a", (1, 2, 3)))
        await link.send(CloseDraft("a", 1))
        assert reason(await link.ask(advance("a", 3, (1,)))) is StaleReason.UNKNOWN


async def test_epoch_fences(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        await link.ask(open_("a", (1, 2, 3, 1, 2), epoch=5))
        await link.send(open_("a", (9, 9), epoch=4), CloseDraft("a", 4), advance("a", 5, (7,), epoch=4))
        answer = await link.ask(advance("a", 5, (3,), length=1, epoch=5))
        assert proposed(answer) == (1,)
        assert proposed(await link.ask(open_("a", (4, 5, 4, 5), length=1, epoch=6))) == (4,)


async def test_least_recently_used_is_dropped(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        for name in ("a", "b", "c"):
            await link.ask(open_(name, (1, 2, 3)))
        await link.ask(advance("a", 3, (1,)))
        await link.ask(open_("d", (1, 2, 3)))
        assert reason(await link.ask(advance("b", 3, (1,)))) is StaleReason.UNKNOWN
        for name, base in (("a", 4), ("c", 3), ("d", 3)):
            assert proposed(await link.ask(advance(name, base, (2, 1, 2), length=1))) != ()


async def test_streams_do_not_share_sessions(drafter: RunningDrafter) -> None:
    async with drafter.link() as one, drafter.link() as two:
        await one.ask(open_("a", (1, 2, 3, 1)))
        await two.ask(open_("a", (5, 6, 7, 5)))
        assert proposed(await one.ask(advance("a", 4, (2,), length=1))) == (3,)
        await two.send(CloseDraft("a", 1))
        assert reason(await two.ask(advance("a", 4, (6,)))) is StaleReason.UNKNOWN
        assert proposed(await one.ask(advance("a", 5, (3,), length=1))) == (1,)


async def test_end_of_a_stream_frees_its_sessions(drafter: RunningDrafter) -> None:
    async with drafter.link() as watcher:
        link = drafter.link()
        async with link as other:
            await other.ask(open_("a", (1, 2, 3)))
            await watcher.load(lambda load: load.sessions == 1)
        await watcher.load(lambda load: load.sessions == 0 and load.kv_usage == 0)
        async with drafter.link() as half:
            await half.ask(open_("a", (1, 2, 3)))
            await half.call.done_writing()
            assert await half.next() is None


async def test_garbage_costs_nobody_else_anything(drafter: RunningDrafter) -> None:
    def command(session_id: str = "bad", epoch: int = 1, **kind: object) -> pb.DraftCommand:
        return pb.DraftCommand(session_id=session_id, epoch=epoch, **kind)  # type: ignore[arg-type]

    sampling = {"seed": 1}
    garbage = [
        command(),
        command(epoch=0, close=pb.CloseSession()),
        command(open=pb.OpenSession()),
        command(open=pb.OpenSession(token_ids=[2**32 - 1], sampling=sampling)),
        command(open=pb.OpenSession(token_ids=[1], sampling={"seed": 1, "temperature": float("nan")})),
        command(open=pb.OpenSession(token_ids=[1], sampling=sampling, draft_length=2**32 - 1)),
        command(advance=pb.AdvanceSession(base_len=3, accepted=7)),
        command(session_id="x" * 5000, close=pb.CloseSession()),
    ]
    async with drafter.link() as link:
        await link.ask(open_("good", (1, 2, 3, 1)))
        for message in garbage:
            await link.send(message)
            response = None
            while response is None or not response.events or response.events[0].HasField("load"):
                response = await link.call.read()
            (event,) = response.events
            assert event.session_id == message.session_id
            assert event.stale.reason == pb.STALE_REASON_INVALID, event
            assert event.stale.detail
        assert proposed(await link.ask(advance("good", 4, (2,), length=1))) == (3,)
        await link.send(pb.DraftCommand(session_id="good", epoch=1, advance=pb.AdvanceSession(base_len=0)))
        assert reason(await link.next()) is StaleReason.INVALID
        assert reason(await link.ask(advance("good", 5, (3,)))) is StaleReason.UNKNOWN


async def test_many_commands_in_one_message(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        await link.send(
            open_("a", (1, 2)), *(advance("a", 2 + n, (1 + n % 2,), length=0) for n in range(2000))
        )
        assert proposed(await link.ask(advance("a", 2002, (), length=2))) == (1, 2)


async def test_draining(drafter: RunningDrafter) -> None:
    async with drafter.link() as link:
        await link.ask(open_("a", (1, 2, 3)))
        drafter.stop.set()
        assert isinstance(await link.next(), Draining)
        assert await link.next() is None
        await asyncio.wait_for(drafter.task, 30)


async def test_metrics_page(start: Start) -> None:
    drafter = await start(method="prompt_lookup", metrics_port=0)
    async with drafter.link() as link, httpx.AsyncClient() as client:
        await link.ask(open_("a", (1, 2, 3, 1, 2), length=1))
        await link.ask(advance("b", 2, (1,)))
        page = (await client.get(f"http://{drafter.addresses['metrics']}/metrics")).text
    assert 'outrider_drafter_draft_tokens_total{model_name="prompt_lookup"} 1.0' in page
    assert 'outrider_drafter_stale_answers_total{model_name="prompt_lookup",reason="unknown"} 1.0' in page


async def test_refuses_what_it_cannot_serve(drafter: RunningDrafter, start: Start) -> None:
    with pytest.raises(ConfigError, match="ngram_min"):
        await start(method="prompt_lookup", ngram_min=5, ngram_max=4)
    with pytest.raises(ConfigError, match="needs a model"):
        await start(method="draft_model")
    with pytest.raises(ConfigError, match="no such drafter"):
        await serve(OutriderConfig(), "other", ready=lambda _: None, stop=asyncio.Event())
    taken = OutriderConfig(
        drafters={"x": DrafterConfig(method="prompt_lookup", port=int(drafter.address.rsplit(":", 1)[1]))}
    )
    with pytest.raises(ConfigError, match="cannot listen"):
        await serve(taken, "x", ready=lambda _: None, stop=asyncio.Event())
