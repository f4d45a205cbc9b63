"""The errors of both stores, worded once."""

from __future__ import annotations

from outrider.core.errors import (
    ProtocolError,
    SessionExistsError,
    SessionNotFoundError,
    StaleEpochError,
)


def exists(session_id: str) -> SessionExistsError:
    """The id is in use."""
    return SessionExistsError(f"session {session_id} exists already")


def missing(session_id: str) -> SessionNotFoundError:
    """Never created, expired or deleted."""
    return SessionNotFoundError(f"session {session_id} is not in the store")


def stale(session_id: str, ours: int, current: int) -> StaleEpochError:
    """Somebody else has claimed the session."""
    return StaleEpochError(f"session {session_id} belongs to epoch {current}, this write has epoch {ours}")


def rival(session_id: str, epoch: int) -> StaleEpochError:
    """Somebody else has the session with the same epoch: two restored it, and the other one was first."""
    return StaleEpochError(f"session {session_id} was restored with epoch {epoch} by somebody else")


def other(session_id: str) -> StaleEpochError:
    """A session that is to be restored is there, but as another one."""
    return StaleEpochError(f"session {session_id} is in the store with another prompt or other parameters")


def gap(session_id: str, length: int, held: int) -> ProtocolError:
    """A write that builds on tokens that the store does not have."""
    return ProtocolError(f"session {session_id} holds {held} tokens, this write builds on {length}")


def conflict(session_id: str, base_len: int) -> ProtocolError:
    """The same owner writes other tokens over what it wrote before."""
    return ProtocolError(
        f"session {session_id} went on otherwise after its first {base_len} tokens: commits are final"
    )


def finished(session_id: str, reason: str) -> ProtocolError:
    """A write after the end."""
    return ProtocolError(f"session {session_id} finished already ({reason})")
