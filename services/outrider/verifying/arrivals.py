"""Sessions on their way in: while the store is asked about one, its id and its place are held."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from outrider.core.errors import SessionExistsError, UnavailableError
from outrider.verifying.places import Places
from outrider.verifying.streams import StreamTable


class Arrivals:
    """Event loop only."""

    def __init__(self, streams: StreamTable, places: Places) -> None:
        """Args:
        streams: sessions that live here.
        places: how many may come in.
        """
        self._streams = streams
        self._places = places
        self._asked: dict[str, asyncio.Event] = {}  # set once the store has answered
        self._closed = False

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._asked

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def closed(self) -> bool:
        """Whether nobody is admitted any more."""
        return self._closed

    def close(self) -> None:
        """Admit nobody any more."""
        self._closed = True

    def check_open(self) -> None:
        """Raises UnavailableError: nobody is admitted any more."""
        if self._closed:
            raise UnavailableError("the verifier is stopping")

    async def wait(self, session_id: str) -> None:
        """Until nothing is asked about a session."""
        while (asked := self._asked.get(session_id)) is not None:
            await asked.wait()

    def take_place(self, session_id: str, tenant: str, *, returns: bool = False) -> None:
        """A place for a session whose id is held.

        `returns`: its client has tokens of it. That must be certain: another one may have to give way.

        Raises:
            OverloadedError: there is none.
        """
        self._places.take(session_id, tenant, returns=returns)

    @contextmanager
    def holding(self, session_id: str) -> Iterator[None]:
        """Hold the id, and its place once it has one. The session lives here by the end, or gives them back.

        Raises:
            UnavailableError: nobody is admitted any more.
            SessionExistsError: it lives here, or is on its way in.
        """
        self.check_open()
        if session_id in self._streams or session_id in self._asked:
            raise SessionExistsError(f"session {session_id} runs here already")
        self._asked[session_id] = asked = asyncio.Event()
        try:
            yield
        finally:
            if session_id not in self._streams:
                self._places.give_back(session_id)
            del self._asked[session_id]
            asked.set()
