"""Whose the sessions are that live here: the store knows. Event loop only."""

from __future__ import annotations

from collections.abc import Callable

from outrider.core.errors import (
    SessionExistsError,
    SessionNotFoundError,
    StaleEpochError,
    StoreUnavailableError,
)
from outrider.sessions.store import SessionStore
from outrider.sessions.writer import CommitWriter
from outrider.telemetry import names
from outrider.verifying.mailbox import End, Inward
from outrider.verifying.streams import StreamTable


class Ownership:
    """Stops sessions that somebody else has claimed."""

    def __init__(
        self,
        streams: StreamTable,
        store: SessionStore,
        writer: CommitWriter,
        *,
        post: Callable[[Inward], None],
        moved: Callable[[str], None],
    ) -> None:
        """Args:
        streams: sessions that live here.
        store: knows the epoch of each.
        writer: knows whether the store is there.
        post: the engine thread's inbox.
        moved: told of each session that changed hands: one of names.SESSION_MOVES.
        """
        self._streams = streams
        self._store = store
        self._writer = writer
        self._post = post
        self.moved = moved

    def fenced(self, session_id: str, error: StaleEpochError) -> None:
        """The store has refused a write: somebody else owns the session, and it stops here."""
        if self._streams.fenced(session_id, error):
            self.moved(names.MOVE_FENCED)
        self._post(End(session_id, error=error))

    async def confirm(self, session_id: str) -> bool:
        """Whether a session that lives here is still ours; if it is not, it has stopped.

        One that stood still for a while (a process that was frozen) may have lost it without knowing.
        While the store is away it counts as ours.
        """
        mine = self._streams.snapshot(session_id)
        if mine is None or self._writer.degraded:
            return mine is not None
        try:
            found = await self._store.load(session_id)
        except (StoreUnavailableError, SessionNotFoundError):
            return session_id in self._streams
        if found.epoch > mine.epoch:
            await self._stop(session_id, found.epoch)
        return session_id in self._streams

    async def give_up_older(self, session_id: str, epoch: int, tenant: str) -> None:
        """Stop a session that lives here with an epoch below `epoch`.

        Raises:
            SessionExistsError: it is another tenant's.
            StaleEpochError: it lives here with this epoch or a higher one.
        """
        mine = self._streams.snapshot(session_id)
        if mine is None:
            return
        if mine.tenant != tenant:
            raise SessionExistsError(f"session {session_id} runs here already")
        if mine.epoch >= epoch:
            raise StaleEpochError(f"session {session_id} runs here with epoch {mine.epoch}")
        await self._stop(session_id, epoch)

    async def _stop(self, session_id: str, epoch: int) -> None:
        self._writer.forget(session_id)
        error = StaleEpochError(f"session {session_id} belongs to epoch {epoch} now")
        self.fenced(session_id, error)
        await self._streams.wait_ended(session_id)
