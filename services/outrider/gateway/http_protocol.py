"""HTTP/1.1 connections with bounds that uvicorn lacks: time for a request's head and for reading an answer,
and their number."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES = 32 * 1024
"""Of a request line and all headers."""


class BoundedProtocol(H11Protocol):
    """Closes connections on which no head of a request comes to its end, whose client does not read, and
    those that are too many."""

    head_timeout_s: ClassVar[float]
    unread_s: ClassVar[float]
    max_connections: ClassVar[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """See asyncio.Protocol."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
        else:
            self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._forget_head()
        self._forget_unread()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See asyncio.Protocol: the client has more to read than fits the buffers."""
        super().pause_writing()
        self._forget_unread()
        # Not close(), which would wait for the client to read the rest.
        self._unread_timer = self.loop.call_later(self.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """See asyncio.Protocol: it has read most of that."""
        self._forget_unread()
        super().resume_writing()

    def handle_events(self) -> None:
        """See uvicorn's: some bytes came."""
        super().handle_events()
        self._watch_head()

    def on_response_complete(self) -> None:
        """See uvicorn's: a response was sent."""
        super().on_response_complete()
        self._watch_head()

    def _watch_head(self) -> None:
        """A head is awaited also behind a body that nobody wants: it may come for ever."""
        answered = self.cycle is None or self.cycle.response_complete
        if self.transport.is_closing() or not (answered or self.conn.their_state is h11.IDLE):
            self._forget_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.abort)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _forget_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


def bounded(head_timeout: float, unread: float, connections: int) -> type[BoundedProtocol]:
    """The protocol for `uvicorn.Config(http=...)`: seconds for a head, for reading, connections at once."""

    class Bounded(BoundedProtocol):
        head_timeout_s = head_timeout
        unread_s = unread
        max_connections = connections

    return Bounded
