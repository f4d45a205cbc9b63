"""One verifier's stream, as the event loop sees it: what waits to be sent, and back-pressure."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from outrider.wire.v1 import drafter_pb2 as pb

MAX_UNAPPLIED = 4096
"""Weight of the commands of one stream that may wait for the scheduler; then no more are read."""
MAX_UNSENT = 16384
"""Events that may wait for a slow reader; then no more commands are read."""


class DraftStream:
    """Used in the event loop only."""

    __slots__ = ("_ended", "_events", "_room", "_unapplied", "_wake", "id")

    def __init__(self, stream_id: int) -> None:
        self.id = stream_id
        self._events: deque[pb.DraftEvent] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._unapplied = 0
        self._ended = False

    @property
    def unapplied(self) -> int:
        """Weight of the commands that the scheduler has not taken in yet."""
        return self._unapplied

    def send(self, events: Iterable[pb.DraftEvent]) -> None:
        """Queue events for the verifier."""
        self._events.extend(events)
        self._wake.set()

    def end(self) -> None:
        """Send what is queued, then end the stream."""
        self._ended = True
        self._wake.set()

    async def take(self) -> list[pb.DraftEvent]:
        """All queued events, once there are some; empty: the stream has ended."""
        while not self._events and not self._ended:
            self._wake.clear()
            await self._wake.wait()
        events = list(self._events)
        self._events.clear()
        self._room.set()
        return events

    def submitted(self, weight: int) -> None:
        """Commands went to the scheduler."""
        self._unapplied += weight

    def applied(self, weight: int) -> None:
        """The scheduler took commands in."""
        self._unapplied -= weight
        self._room.set()

    async def room(self) -> None:
        """Wait until the peer may send more."""
        while self._unapplied > MAX_UNAPPLIED or len(self._events) > MAX_UNSENT:
            self._room.clear()
            await self._room.wait()
