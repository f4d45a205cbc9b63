"""Ids of events: how much of an answer its client has by then, so that a broken stream can go on from there.

`chatcmpl-4f.../12,7!,-`: the answer's id, and for each choice the tokens that were delivered. Behind them is
`+` if text that only the end made certain was delivered too, `!` if the choice is over; `-` is one that has
not begun. `/usage` at the end: all was sent but `[DONE]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.errors import InvalidRequestError
from outrider.wire.messages import GenerationDelta

FIELD = "Last-Event-ID"
PATTERN = r"^[a-z]+-[0-9a-f]{32}/[0-9+!,-]+(/usage)?$"
"""Of ids, as far as a pattern tells."""
_LONGEST = 8192
_PATTERN = re.compile(r"(?P<response>[a-z]+-[0-9a-f]{32})/(?P<marks>[0-9+!,-]+?)(?P<usage>/usage)?", re.ASCII)
_MARK = re.compile(r"-|(?P<tokens>[0-9]{1,10})(?P<end>[+!]?)", re.ASCII)


@dataclass(slots=True)
class Mark:
    """What was delivered of one choice."""

    begun: bool = False  # its opening event, if it has one
    tokens: int = 0
    ended: bool = False  # the text that only the end made certain, if there is any
    closed: bool = False  # its last event

    def __str__(self) -> str:
        if not self.begun:
            return "-"
        return f"{self.tokens}{'!' if self.closed else '+' if self.ended else ''}"


class Positions:
    """Where the choices of one answer stand. Each method says whether its event is news to the client."""

    def __init__(self, response_id: str, marks: Sequence[Mark], *, with_usage: bool = False) -> None:
        self.response_id = response_id
        self.marks = marks
        self._with_usage = with_usage

    @classmethod
    def at_start(cls, response_id: str, choices: int) -> Positions:
        """Of an answer of which nothing was delivered."""
        return cls(response_id, [Mark() for _ in range(choices)])

    @classmethod
    def parse(cls, event_id: str, *, prefix: str, choices: int) -> Positions:
        """Of an event's id, as a client gives it back.

        Raises:
            InvalidRequestError: it is none, or one of another kind of request.
        """
        found = _PATTERN.fullmatch(event_id) if len(event_id) <= _LONGEST else None
        if found is None:
            raise _wrong("is not the id of an event")
        if not found["response"].startswith(f"{prefix}-"):
            raise _wrong(f"is not of an answer of this endpoint, whose ids begin with {prefix}-")
        marks = [_mark(text) for text in found["marks"].split(",")]
        if len(marks) != choices:
            raise _wrong(f"is of a request with {len(marks)} choices, this one has {choices}")
        return cls(found["response"], marks, with_usage=bool(found["usage"]))

    def __str__(self) -> str:
        marks = ",".join(str(mark) for mark in self.marks)
        return f"{self.response_id}/{marks}{'/usage' if self._with_usage else ''}"

    @property
    def delivered(self) -> list[int | None]:
        """For each choice the tokens that the client has; None: it knows nothing of it."""
        return [mark.tokens if mark.begun else None for mark in self.marks]

    def session_id(self, index: int) -> str:
        """Id of the session that a choice comes from."""
        return f"{self.response_id}.{index}" if index else self.response_id

    def begin(self, index: int) -> bool:
        """The opening event of a choice."""
        mark = self.marks[index]
        news = not mark.begun
        mark.begun = True
        return news

    def deliver(self, index: int, delta: GenerationDelta) -> bool:
        """New tokens and text of a choice."""
        mark = self.marks[index]
        if not delta.token_ids:
            news = not mark.ended and not mark.closed
            mark.ended = True
            return news
        until = delta.first_token + len(delta.token_ids)
        news = until > mark.tokens
        mark.tokens = max(mark.tokens, until)
        return news

    def close(self, index: int) -> bool:
        """The last event of a choice."""
        mark = self.marks[index]
        news = not mark.closed
        mark.closed = True
        return news

    def tell_usage(self) -> bool:
        """The usage of the whole answer."""
        news = not self._with_usage
        self._with_usage = True
        return news


def _mark(text: str) -> Mark:
    found = _MARK.fullmatch(text)
    if found is None:
        raise _wrong("is not the id of an event")
    if found["tokens"] is None:
        return Mark()
    closed = found["end"] == "!"
    return Mark(True, int(found["tokens"]), closed or found["end"] == "+", closed)


def _wrong(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{FIELD} {what}", field=FIELD)
