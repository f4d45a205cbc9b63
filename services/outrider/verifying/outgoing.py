"""What waits to be sent on one connection to a drafter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from outrider.wire import convert
from outrider.wire.messages import CloseDraft, DraftCommand
from outrider.wire.v1 import drafter_pb2 as pb

_MAX_PENDING = 256
"""Messages kept for a drafter that does not read; past this the link starts over."""
_MESSAGE_BYTES = 16 * 2**20
"""Commands of one step are split into messages of about this size: a message may hold 64 MiB."""
_TOKEN_BYTES = 5
_TOLD_BYTES = 2**20
"""Bytes of features that went out between two reports: the engine thread is not woken for each row."""


class Outgoing:
    """Event loop only. gRPC iterates over it, and asks for a message once it has taken the one before."""

    def __init__(self, took: Callable[[int], None]) -> None:
        """`took` is told how many bytes of features went out, now and then."""
        self._queue: asyncio.Queue[tuple[pb.DraftRequest, int]] = asyncio.Queue(_MAX_PENDING)
        self._took = took
        self._untold = 0

    def put(self, commands: Sequence[DraftCommand]) -> bool:
        """Send the commands of one step, in order. False: too much waits, and these are lost."""
        try:
            for batch in _batches(commands):
                request = pb.DraftRequest(commands=map(convert.command_to_proto, batch))
                self._queue.put_nowait((request, sum(map(_feature_bytes, batch))))
        except asyncio.QueueFull:
            return False
        return True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.DraftRequest:
        if self._untold >= _TOLD_BYTES:
            self._took(self._untold)
            self._untold = 0
        request, carried = await self._queue.get()
        self._untold += carried
        return request


def _batches(commands: Sequence[DraftCommand]) -> Iterator[Sequence[DraftCommand]]:
    start, size = 0, 0
    for index, command in enumerate(commands):
        weight = 0 if isinstance(command, CloseDraft) else _TOKEN_BYTES * len(command.token_ids)
        weight += _feature_bytes(command)
        if size and size + weight > _MESSAGE_BYTES:
            yield commands[start:index]
            start, size = index, 0
        size += weight
    yield commands[start:]


def _feature_bytes(command: DraftCommand) -> int:
    return 0 if isinstance(command, CloseDraft) else sum(len(block.data) for block in command.features)
