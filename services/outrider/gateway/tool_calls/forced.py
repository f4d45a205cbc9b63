"""Answers that a grammar holds to a call, so that their arguments can be given as they come."""

from __future__ import annotations

import json
import re

from outrider.gateway.tool_calls.pieces import CallPiece, Piece

_HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"parameters"\s*:\s*(?=\{)')
_BETWEEN = " \t\r\n,["
_TOKEN = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
_OPENING, _CLOSING = "{[", "}]"


class NamedReader:
    """The whole answer is the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._name = name

    def push(self, text: str) -> list[Piece]:
        """See ToolCallReader."""
        name, self._name = self._name, ""
        return [CallPiece(0, name, text)]

    def finish(self) -> list[Piece]:
        """See ToolCallReader."""
        return self.push("") if self._name else []


class RequiredReader:
    """The answer is `[{"name": ..., "parameters": {...}}, ...]`."""

    def __init__(self) -> None:
        self._buffer = ""
        self._calls = 0
        self._depth = 0  # of brackets within the arguments; 0: not within
        self._quoted = False

    def push(self, text: str) -> list[Piece]:
        """See ToolCallReader."""
        self._buffer += text
        pieces: list[Piece] = []
        while self._arguments(pieces) if self._depth else self._head(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """See ToolCallReader. An answer that was cut within a call's head is text."""
        rest = self._buffer if self._depth else self._buffer.lstrip(_BETWEEN + "}]")
        return [rest] if rest else []

    def _head(self, pieces: list[Piece]) -> bool:
        """Up to where the arguments begin; True if they do."""
        self._buffer = self._buffer.lstrip(_BETWEEN + "}]")
        head = _HEAD.match(self._buffer)
        if head is None or head.end() == len(self._buffer):
            return False
        self._buffer = self._buffer[head.end() + 1 :]
        self._depth = 1
        pieces.append(CallPiece(self._calls, json.loads(head[1]), "{"))
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        """Arguments as far as they are there; True if they end."""
        end = len(self._buffer)
        end -= (end - len(self._buffer.rstrip("\\"))) % 2  # half an escape
        for token in _TOKEN.finditer(self._buffer, 0, end):
            if token[0] == '"':
                self._quoted = not self._quoted
            elif not self._quoted and token[0] in _OPENING:
                self._depth += 1
            elif not self._quoted and token[0] in _CLOSING:
                self._depth -= 1
            if not self._depth:
                end = token.end()
                break
        if end:
            pieces.append(CallPiece(self._calls, "", self._buffer[:end]))
        self._buffer = self._buffer[end:]
        self._calls += not self._depth
        return not self._depth
