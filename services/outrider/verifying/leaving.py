"""Sessions that go without being over: nobody reads them, or the verifier stops. Event loop only.

Such a session holds nothing here any more, and the store has all of it: any verifier can go on with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from outrider.core.errors import SessionMovedError, SessionParkedError
from outrider.sessions.writer import CommitWriter
from outrider.telemetry import names
from outrider.verifying.attachment import Attachment
from outrider.verifying.mailbox import Inward, Leave
from outrider.verifying.streams import StreamTable

_log = logging.getLogger(__name__)

FLUSH_S = 2.0
"""How long the last commits of a session may take to be stored; then it is let go all the same."""
PARK_S = 5.0
"""How long parking a session may take in all."""


class Leaving:
    """Parks sessions, and hands them over."""

    def __init__(
        self,
        streams: StreamTable,
        writer: CommitWriter,
        *,
        post: Callable[[Inward], None],
        detached_s: float,
        moved: Callable[[str], None],
    ) -> None:
        """Args:
        streams: sessions that live here.
        writer: of their commits.
        post: the engine thread's inbox.
        detached_s: how long a session goes on that no client reads.
        moved: told of each session that left: one of names.SESSION_MOVES.
        """
        self._streams = streams
        self._writer = writer
        self._post = post
        self._detached_s = detached_s
        self._moved = moved
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    def detach(self, attachment: Attachment) -> None:
        """Its client is gone. The session goes on for a while: the client may come back.

        One that waits for its turn is parked at once, so that it costs no step.
        """
        attachment.close()
        if not self._streams.is_current(attachment):
            return
        self._post(Leave(attachment.session_id, waiting=True))
        delay = 0.0 if self._stopping else self._detached_s
        asyncio.get_running_loop().call_later(delay, self._give_up, attachment)

    def _give_up(self, attachment: Attachment) -> None:
        if self._streams.is_current(attachment):
            self._post(Leave(attachment.session_id))

    async def park(self, session_id: str) -> bool:
        """Leave a session to the store; all that it held is free then. False: that took too long."""
        self._post(Leave(session_id))
        try:
            async with asyncio.timeout(PARK_S):
                await self._streams.wait_ended(session_id)
        except TimeoutError:
            return False
        return True

    async def hand_over(self, grace_s: float) -> None:
        """Leave all sessions to others: at once those that wait or that nobody reads; the rest may go on
        for `grace_s` seconds, and some of them end by themselves."""
        self._stopping = True
        self._post(Leave(None, waiting=True))
        for session_id in self._streams.unread():
            self._post(Leave(session_id))
        if await self._empty_within(grace_s):
            return
        self._post(Leave(None))
        if not await self._empty_within(FLUSH_S + 1.0):
            self._streams.fail_all(_handed_over())

    async def _empty_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._streams.wait_empty()
        except TimeoutError:
            return False
        return True

    def left(self, session_id: str) -> None:
        """The engine thread has let go of a session; its commits are with the writer."""
        self._streams.leave(session_id)
        task = asyncio.create_task(self._part(session_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _part(self, session_id: str) -> None:
        """Its client hears of it once somebody else can go on where it stopped."""
        stored = await self._writer.settle(session_id, FLUSH_S)
        if session_id not in self._streams:
            return  # it was fenced meanwhile
        if not stored:
            _log.warning(
                "session %s leaves, but its last tokens are not stored: the store is away", session_id
            )
        given = self._stopping and not self._streams.is_unread(session_id)
        self._moved(names.MOVE_HANDED_OVER if given else names.MOVE_PARKED)
        self._streams.part(session_id, _handed_over() if self._stopping else _parked())


def _handed_over() -> SessionMovedError:
    return SessionMovedError("the verifier is stopping: the session can be resumed on another one")


def _parked() -> SessionParkedError:
    return SessionParkedError("the session is parked: it can be resumed")
