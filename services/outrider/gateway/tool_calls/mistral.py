"""`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, and newer `[TOOL_CALLS]name[ARGS]{...}`: Mistral.

Calls end the answer, so they are read there.
"""

from __future__ import annotations

import re

from outrider.gateway.tool_calls.pieces import (
    Call,
    Piece,
    call_from_value,
    decode_value,
    held_back,
    make_call,
)

MARKER = "[TOOL_CALLS]"

_SPACE = re.compile(rf"(?:\s|{re.escape(MARKER)})*")
_NAME = re.compile(r"([A-Za-z0-9_.:/-]+)(?:\[CALL_ID\][A-Za-z0-9]*)?(?:\[ARGS\])?\s*(?=\{)")


class MistralReader:
    """Text, and calls at its end."""

    def __init__(self) -> None:
        self._buffer = ""
        self._calls: list[str] | None = None  # pieces of what follows the marker

    def push(self, text: str) -> list[Piece]:
        """See ToolCallReader."""
        if self._calls is not None:
            self._calls.append(text)
            return []
        self._buffer += text
        before, marker, after = self._buffer.partition(MARKER)
        if marker:
            self._calls = [after]
            spoken = before.rstrip()
            self._buffer = before[len(spoken) :]
        else:
            keep = held_back(before, MARKER)
            spoken = before[: len(before) - keep].rstrip()
            self._buffer = before[len(spoken) :]
        return [spoken] if spoken else []

    def finish(self) -> list[Piece]:
        """See ToolCallReader."""
        if self._calls is None:
            return [self._buffer] if self._buffer else []
        text = "".join(self._calls)
        calls, end = _read(text)
        if not calls:
            return [f"{self._buffer}{MARKER}{text}"]
        pieces: list[Piece] = [call.piece(index) for index, call in enumerate(calls)]
        rest = text[end:]
        return [*pieces, rest] if rest.strip() else pieces


def _read(text: str) -> tuple[list[Call], int]:
    """Calls from the beginning of `text`, and where what is none begins."""
    calls: list[Call] = []
    end = 0
    while True:
        position = _match_end(_SPACE, text, end)
        if position == len(text):
            return calls, position
        found = _next(text, position)
        if found is None:
            return calls, end
        calls += found[0]
        end = found[1]


def _next(text: str, position: int) -> tuple[list[Call], int] | None:
    name = _NAME.match(text, position)
    decoded = decode_value(text, name.end() if name else position)
    if decoded is None:
        return None
    value, end = decoded
    if name:
        calls = [make_call(name[1], value)]
    else:
        calls = [call_from_value(item) for item in (value if isinstance(value, list) else [value])]
    good = [call for call in calls if call is not None]
    return (good, end) if good and len(good) == len(calls) else None


def _match_end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start
