"""Items that wait until the store has the tokens in them.

By the rules "token" and "block" whoever takes a session over draws other tokens than those that were lost,
so a client must not see a token before the store has it. Coupled sessions need no gate: their tokens are
computed again, and are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from outrider.verifying.mailbox import StreamItem
from outrider.wire.messages import SessionFinished


@dataclass(slots=True)
class Gate:
    """In front of one session's client."""

    stored: int  # generated tokens that the store has
    closed: bool = False  # the store took too long: nothing passes any more
    _waiting: deque[tuple[int, StreamItem]] = field(default_factory=deque)

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._waiting)

    def put(self, item: StreamItem, tokens: int) -> None:
        """An item that may pass once `tokens` generated tokens are stored."""
        if not self.closed:
            self._waiting.append((tokens, item))

    def passing(self) -> Iterator[StreamItem]:
        """Items that may pass now, in order."""
        while self._waiting and self._waiting[0][0] <= self.stored:
            yield self._waiting.popleft()[1]

    def close(self) -> bool:
        """Let nothing through any more. Returns whether the session's end was among what waited."""
        ended = any(isinstance(item, SessionFinished) for _, item in self._waiting)
        self.closed = True
        self._waiting.clear()
        return ended
