"""The session store protocol. `memory` and `redis` behave alike: one conformance suite tests both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.core.sessions import Commit, FinishReason, SessionRecord


class SessionStore(Protocol):
    """Holds sessions so that any verifier can take one over.

    All methods raise StoreUnavailableError when the store cannot be reached in time.

    A write belongs to the session's owner: it carries the epoch that the store knows. With a lower one it is
    refused. A higher one shows that the store has lost a claim (it went back to what it was some time ago):
    such a write raises the epoch and is done. Of two who restored a session with the same epoch, the first is
    its owner.
    """

    async def create(self, record: SessionRecord) -> None:
        """Store a new session.

        Raises:
            SessionExistsError: the id is in use.
        """

    async def restore(self, record: SessionRecord) -> None:
        """Store a session as its client knows it, of which the store may have less, or nothing.

        Stores it as new if there is none. One that is there with a lower epoch is taken over: it has
        `record.epoch` from then on. If its tokens and those of `record` are the same as far as both go, the
        longer ones stay; if they differ, those of `record`: an owner that had lost the session drew others
        (by the rules "token" and "block"), and wrote them into a store that had lost it too.

        Raises:
            StaleEpochError: it is there with the same epoch or a higher one, or it is another session
                (another prompt, other parameters, another tenant).
            ProtocolError: it is finished.
        """

    async def claim(self, session_id: str) -> SessionRecord:
        """Take a session over: raises its epoch by one and returns it with that epoch.

        Raises:
            SessionNotFoundError: no such session.
        """

    async def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """Write the commits of one step, of any number of sessions, in one round trip.

        A commit with a `finish_reason` finishes the session. Writing the same commit again (same
        epoch, same base_len, same tokens) changes nothing and succeeds, so that retries are safe;
        of a commit whose first tokens are there already, the rest is written.

        Returns one entry a commit: None, or StaleEpochError (somebody else owns the session),
        SessionNotFoundError, or ProtocolError (base_len leaves a gap, the session is finished, or
        other tokens stand there already), or StoreUnavailableError where some of the sessions can be
        reached and others cannot. A refused commit changes nothing and does not touch the others.
        """

    async def load(self, session_id: str) -> SessionRecord:
        """Read a session without claiming it.

        Raises:
            SessionNotFoundError: no such session.
        """

    async def truncate(self, session_id: str, epoch: int, length: int, reason: FinishReason) -> None:
        """Keep the first `length` generated tokens and finish the session with `reason`.

        For a session that ended before its last committed token (a stop string, a cancel), also if it
        is finished already, with whatever reason.

        Raises:
            StaleEpochError: somebody else owns the session.
            SessionNotFoundError: no such session.
            ProtocolError: fewer than `length` tokens were written.
        """

    async def delete(self, session_id: str) -> None:
        """Forget a session. Idempotent."""

    async def ping(self) -> None:
        """Raise StoreUnavailableError unless the store answers."""

    async def close(self) -> None:
        """Give connections back."""
