"""Where the engine thread's outcomes come out in the event loop, and go to whom they concern."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from outrider.sessions.writer import CommitWriter
from outrider.verifying.links import DrafterLink
from outrider.verifying.mailbox import Outcome
from outrider.verifying.places import Places
from outrider.verifying.streams import StreamTable


class Hub:
    """Hands outcomes on: first to drafters, for they are waited for, then to clients, then to the store."""

    def __init__(
        self,
        links: Mapping[str, DrafterLink],
        streams: StreamTable,
        places: Places,
        writer: CommitWriter,
        left: Callable[[str], None],
    ) -> None:
        """From within the event loop. `links` come and go. `left` is told of sessions that were let
        go, after their commits."""
        self._links = links
        self._streams = streams
        self._places = places
        self._writer = writer
        self._left = left
        self._loop = asyncio.get_running_loop()

    def publish(self, outcome: Outcome) -> None:
        """Called in the engine thread; returns at once."""
        self._loop.call_soon_threadsafe(self._deliver, outcome)

    def _deliver(self, outcome: Outcome) -> None:
        for (name, generation), commands in outcome.commands.items():
            if (link := self._links.get(name)) is not None:
                link.send(generation, commands)
        # After the links' tasks, which `send` has woken, and in the order of outcomes.
        self._loop.call_soon(self._deliver_rest, outcome)

    def _deliver_rest(self, outcome: Outcome) -> None:
        for session_id in outcome.started:
            self._places.started(session_id)
        self._streams.deliver(outcome.items)
        if outcome.commits:
            self._writer.put(outcome.commits)
        for cut in outcome.truncations:
            self._writer.truncate(cut.session_id, cut.epoch, cut.length, cut.reason)
        for session_id in outcome.left:
            self._left(session_id)
