"""A verifier's stream, as the service reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

from grpc import aio

from outrider.core.models import DrafterInfo, ModelInfo
from outrider.drafting.service import SLICE, DrafterService
from outrider.drafting.worker import Arrival, StreamEnd
from outrider.wire.convert.drafter import command_to_proto
from outrider.wire.messages import CloseDraft
from outrider.wire.v1 import drafter_pb2 as pb


class _Context:
    """What the service asks of a gRPC context."""

    def __init__(self) -> None:
        self.ended: list[Callable[[object], None]] = []

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.ended.append(callback)


async def test_nothing_is_taken_in_after_the_end_of_a_stream() -> None:
    """A stream that breaks while its commands are read leaves no session behind."""
    context, seen = _Context(), []

    def put(item: Arrival | StreamEnd) -> None:
        seen.append(type(item))
        if len(seen) == 2:
            context.ended[0](None)

    async def requests() -> AsyncIterator[pb.DraftRequest]:
        command = command_to_proto(CloseDraft("a", 1))
        for _ in range(2):
            yield pb.DraftRequest(commands=[command] * (3 * SLICE))

    info = DrafterInfo(ModelInfo("m"), "suffix", (), 4, 8, "i")
    service = DrafterService(info, put=put, observe=lambda turn: None)
    stream = service.Draft(
        requests(), cast("aio.ServicerContext[pb.DraftRequest, pb.DraftResponse]", context)
    )
    reading = asyncio.ensure_future(anext(stream, None))
    for _ in range(20):
        await asyncio.sleep(0)
    assert seen == [Arrival, Arrival, StreamEnd]
    assert await asyncio.wait_for(reading, 5) is None
