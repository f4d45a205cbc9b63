"""The sessions that a drafter holds: by stream and id, in order of use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from outrider.drafting.session import DraftSession, SessionKey


class SessionTable:
    """Least recently used first."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[SessionKey, DraftSession] = OrderedDict()
        self._streams: dict[int, set[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[DraftSession]:
        return iter(self._sessions.values())

    def get(self, key: SessionKey) -> DraftSession | None:
        """The session, if it is held. Does not count as a use."""
        return self._sessions.get(key)

    def touch(self, session: DraftSession) -> None:
        """The session was used."""
        self._sessions.move_to_end(session.key)

    def add(self, session: DraftSession) -> None:
        """Hold a session whose key is not in use."""
        self._sessions[session.key] = session
        self._streams.setdefault(session.key.stream, set()).add(session.key)

    def remove(self, session: DraftSession) -> None:
        """Hold it no longer."""
        del self._sessions[session.key]
        keys = self._streams[session.key.stream]
        keys.discard(session.key)
        if not keys:
            del self._streams[session.key.stream]

    def of_stream(self, stream: int) -> list[DraftSession]:
        """All sessions of one stream."""
        return [self._sessions[key] for key in self._streams.get(stream, ())]

    def oldest(self, accept: Callable[[DraftSession], bool]) -> DraftSession | None:
        """The least recently used session that `accept` likes."""
        return next(filter(accept, self), None)
