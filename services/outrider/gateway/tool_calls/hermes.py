"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM3 and others.

A call is given once it is complete, so what turns out to be malformed can still be delivered as text.
"""

from __future__ import annotations

import re

from outrider.gateway.tool_calls.pieces import Piece, call_from_json, held_back

START = "<tool_call>"
END = "</tool_call>"

# An end marker within a JSON string is none.
_TOKEN = re.compile(rf'\\.|"|{END}', re.DOTALL)


class HermesReader:
    """Text with marked calls in it. White space beside a call is layout, and not delivered."""

    def __init__(self) -> None:
        self._buffer = ""
        self._space = ""  # before what may be a call
        self._in_call = False
        self._scanned = 0  # of the buffer, within a call
        self._quoted = False
        self._calls = 0

    def push(self, text: str) -> list[Piece]:
        """See ToolCallReader."""
        self._buffer += text
        pieces: list[Piece] = []
        while self._call(pieces) if self._in_call else self._text(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """See ToolCallReader. A call whose end marker is missing counts if it is complete otherwise."""
        if not self._in_call:
            rest = self._space + self._buffer
            return [rest] if rest and not (self._calls and rest.isspace()) else []
        pieces: list[Piece] = []
        self._settle(self._buffer, "", pieces)
        return pieces

    def _text(self, pieces: list[Piece]) -> bool:
        """Text up to the next marker; True if there is one."""
        before, marker, after = self._buffer.partition(START)
        keep = 0 if marker else held_back(before, START)
        text = self._space + before[: len(before) - keep]
        spoken = text.rstrip()
        if spoken:
            pieces.append(spoken)
        self._space = text[len(spoken) :]
        self._buffer = after if marker else before[len(before) - keep :]
        self._in_call = bool(marker)
        self._scanned, self._quoted = 0, False
        return self._in_call

    def _call(self, pieces: list[Piece]) -> bool:
        """A call up to its end marker; True if it is there."""
        for token in _TOKEN.finditer(self._buffer, self._scanned):
            self._scanned = token.end()
            if token[0] == '"':
                self._quoted = not self._quoted
            elif token[0] == END and not self._quoted:
                body = self._buffer[: token.start()]
                self._buffer = self._buffer[token.end() :]
                self._settle(body, END, pieces)
                return True
        self._scanned = max(self._scanned, len(self._buffer) - len(END) + 1)
        return False

    def _settle(self, body: str, end: str, pieces: list[Piece]) -> None:
        call = call_from_json(body)
        if call is not None:
            pieces.append(call.piece(self._calls))
            self._calls += 1
        else:
            pieces.append(f"{self._space}{START}{body}{end}")
        self._space = ""
        self._in_call = False
