"""What readers give, and what they share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a tool call. Its arguments put together are JSON."""

    index: int  # of the call in its message
    name: str  # in the first piece of a call, else empty
    arguments: str


Piece = str | CallPiece
"""Plain text, or a part of a call."""


class ToolCallReader(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[Piece]:
        """What is certain after some more text."""

    def finish(self) -> list[Piece]:
        """The rest; nothing is pushed after it."""


class FirstCallOnly:
    """Drops all calls but the first: `parallel_tool_calls` false."""

    def __init__(self, reader: ToolCallReader) -> None:
        self._reader = reader

    def push(self, text: str) -> list[Piece]:
        """See ToolCallReader."""
        return _without_more(self._reader.push(text))

    def finish(self) -> list[Piece]:
        """See ToolCallReader."""
        return _without_more(self._reader.finish())


def _without_more(pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if isinstance(piece, str) or piece.index == 0]


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call."""

    name: str
    arguments: str  # JSON

    def piece(self, index: int) -> CallPiece:
        """As the call with this index."""
        return CallPiece(index, self.name, self.arguments)


def call_from_json(text: str) -> Call | None:
    """`{"name": ..., "arguments": {...}}`; None if it is anything else.

    Models are forgiven what means the same: `parameters`, no arguments at all, line breaks in strings.
    """
    try:
        return call_from_value(json.loads(text, strict=False, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def call_from_value(value: Any) -> Call | None:
    """The same for parsed JSON."""
    if not isinstance(value, dict):
        return None
    return make_call(value.get("name"), value.get("arguments", value.get("parameters")))


def make_call(name: Any, arguments: Any) -> Call | None:
    """A call, if these are a name and an object (None: empty)."""
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    try:
        name.encode()
        return Call(name, _dumped(arguments))
    except (ValueError, RecursionError):
        return None


def decode_value(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON value that begins at `start`, and where it ends; None if none does."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def held_back(text: str, marker: str) -> int:
    """Length of the longest end of `text` that may be the beginning of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def _dumped(value: dict[str, Any]) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can spell
        text = json.dumps(value)
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse)
