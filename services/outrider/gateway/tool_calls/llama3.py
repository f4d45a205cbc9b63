"""`{"name": ..., "parameters": {...}}`, several of them with `;` between: Llama 3.1 and later.

Nothing marks a call, so an answer that begins with `{` is held back to its end. It is a call if all of it
reads so and the names are those of tools that were offered; everything else is text.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from outrider.gateway.tool_calls.pieces import Call, Piece, call_from_value, decode_value

MARKER = "<|python_tag|>"

_BETWEEN = re.compile(r"[\s;]*")


class Llama3Reader:
    """Either text or calls."""

    def __init__(self, offered: Collection[str]) -> None:
        self._offered = offered
        self._held: list[str] = []
        self._start = ""  # up to where it is clear what the answer is
        self._is_text: bool | None = None

    def push(self, text: str) -> list[Piece]:
        """See ToolCallReader."""
        if self._is_text:
            return [text] if text else []
        self._held.append(text)
        if self._is_text is None:
            self._start += text
            self._is_text = _is_text(self._start.lstrip())
        if not self._is_text:
            return []
        return [self._start]

    def finish(self) -> list[Piece]:
        """See ToolCallReader."""
        text = "" if self._is_text else "".join(self._held)
        calls = _read(text)
        if calls and all(call.name in self._offered for call in calls):
            return [call.piece(index) for index, call in enumerate(calls)]
        return [text] if text else []


def _is_text(start: str) -> bool | None:
    """None: it cannot be told yet."""
    if start.startswith(("{", MARKER)):
        return False
    return None if MARKER.startswith(start) else True


def _read(text: str) -> list[Call] | None:
    """All calls of a text that has nothing else."""
    calls: list[Call] = []
    text = text.strip().removeprefix(MARKER)
    position = 0
    while True:
        between = _BETWEEN.match(text, position)
        position = between.end() if between else position
        if position == len(text):
            return calls
        decoded = decode_value(text, position)
        call = None if decoded is None else call_from_value(decoded[0])
        if decoded is None or call is None:
            return None
        calls.append(call)
        position = decoded[1]
