"""Drafters and verifiers that send far more than they may: the link is dropped, counted and rested."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from outrider.core.models import DrafterInfo, ModelInfo
from outrider.drafting import service as drafting
from outrider.drafting.service import DrafterService
from outrider.verifying import links
from outrider.verifying.links import DrafterLink, LinkReport, LinkStatus
from outrider.wire import channels, convert, services
from outrider.wire.v1 import drafter_pb2 as pb

INFO = DrafterInfo(ModelInfo("tiny"), "prompt_lookup", (), 8, 8, "one")
WAIT_S = 60


def unreadable() -> pb.DraftEvent:
    return pb.DraftEvent(session_id="s")


def unasked() -> pb.DraftEvent:
    event = pb.DraftEvent(session_id="s", epoch=1)
    event.stale.reason = pb.STALE_REASON_UNKNOWN
    return event


def loads() -> pb.DraftEvent:
    return pb.DraftEvent(load=pb.DrafterLoad(sessions=1))


class Flooding(services.DrafterService):
    """Sends the same messages for ever, to whoever connects."""

    def __init__(self, event: Callable[[], pb.DraftEvent], size: int) -> None:
        self.message = pb.DraftResponse(events=[event() for _ in range(size)])
        self.streams = 0

    async def GetInfo(self, request: Any, context: Any) -> pb.DrafterGetInfoResponse:
        return convert.drafter_info_to_proto(INFO)

    async def Draft(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.DraftResponse]:
        self.streams += 1
        while True:
            yield self.message


class Watched:
    """A link, what it counted and where it stood."""

    def __init__(self, address: str) -> None:
        self.dropped: Counter[str] = Counter()
        self.posted: list[object] = []
        self.reports: asyncio.Queue[LinkReport] = asyncio.Queue()
        self.link = DrafterLink(
            "flood",
            address,
            ModelInfo("tiny"),
            offered_features=frozenset(),
            post=self.posted.append,
            dropped=lambda _, reason: self.dropped.update([reason]),
            state=self.reports.put_nowait,
        )

    async def until(self, status: LinkStatus) -> LinkReport:
        async with asyncio.timeout(WAIT_S):
            while (report := await self.reports.get()).status is not status:
                pass
        return report


@asynccontextmanager
async def served(service: services.DrafterService) -> AsyncIterator[str]:
    server = channels.make_server()
    services.add_drafter(server, service)
    address = channels.listen(server, "127.0.0.1", 0)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


@asynccontextmanager
async def linked(service: services.DrafterService) -> AsyncIterator[Watched]:
    async with served(service) as address:
        watched = Watched(address)
        task = asyncio.create_task(watched.link.run())
        try:
            yield watched
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The rest after a flood is short."""
    monkeypatch.setattr(links, "_FLOOD_REST_S", 0.05)
    yield


@pytest.mark.parametrize(
    ("event", "reason"), [(unreadable, "malformed"), (unasked, "flood"), (loads, "flood")]
)
async def test_a_drafter_that_floods_loses_its_link_and_is_counted(
    event: Callable[[], pb.DraftEvent], reason: str
) -> None:
    flooding = Flooding(event, 500)
    async with linked(flooding) as watched:
        report = await watched.until(LinkStatus.DOWN)
    assert "that cannot be used" in report.detail
    assert watched.dropped[reason] > links._MAX_FAULTS
    assert flooding.streams == 1, "it is not called again for a while"


async def test_one_message_with_more_events_than_any_answer_has_costs_the_link() -> None:
    async with linked(Flooding(unasked, links._MAX_EVENTS + 1)) as watched:
        report = await watched.until(LinkStatus.DOWN)
    assert f"sent {links._MAX_EVENTS + 1} events in one message" in report.detail
    assert watched.dropped == {"flood": 1}


@pytest.mark.usefixtures("soon")
async def test_a_drafter_that_flooded_is_called_again_and_has_not_been_forgiven() -> None:
    flooding = Flooding(unreadable, 500)
    async with linked(flooding) as watched:
        await watched.until(LinkStatus.DOWN)
        first = watched.dropped["malformed"]
        await watched.until(LinkStatus.READY)
        await watched.until(LinkStatus.DOWN)
    assert flooding.streams == 2
    assert watched.dropped["malformed"] < 1.5 * first, "what it did before still counts"


async def test_what_a_flood_brings_does_not_reach_the_engine_and_others_get_their_turn() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    other = asyncio.create_task(tick())
    async with linked(Flooding(unreadable, links._MAX_EVENTS)) as watched:
        await watched.until(LinkStatus.READY)
        before = ticks
        await watched.until(LinkStatus.DOWN)
    other.cancel()
    assert ticks - before >= links._MAX_FAULTS // links._SLICE
    assert {type(one).__name__ for one in watched.posted} == {"LinkUp", "LinkDown"}


async def test_a_verifier_that_floods_a_drafter_loses_its_stream_and_others_keep_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafting, "MAX_FAULTS", 100)
    arrived: list[Any] = []
    service = DrafterService(INFO, put=arrived.append, observe=lambda _: None)
    malformed = pb.DraftRequest(commands=[pb.DraftCommand(session_id="s", epoch=1)] * 50)
    closing = pb.DraftRequest(commands=[pb.DraftCommand(session_id="s", epoch=1)])
    closing.commands[0].close.SetInParent()
    async with (
        served(service) as address,
        channels.open_channel(address) as bad,
        channels.open_channel(address) as good,
    ):
        honest = services.drafter_client(good).Draft(timeout=WAIT_S)
        await honest.write(closing)
        flood = services.drafter_client(bad).Draft(timeout=WAIT_S)
        with pytest.raises((aio.AioRpcError, asyncio.InvalidStateError)):
            while True:
                await flood.write(malformed)
        assert flood.done()
        await honest.write(closing)
        await honest.done_writing()
        assert await honest.read() is aio.EOF
        assert await honest.code() is grpc.StatusCode.OK
    closes = sum(
        type(command).__name__ == "CloseDraft" for one in arrived for command in getattr(one, "commands", ())
    )
    assert closes == 2
