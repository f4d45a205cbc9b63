"""Answers as content and tool calls, whole and in deltas."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence

from outrider.gateway.openai import responses as r
from outrider.gateway.openai.answers import Answer
from outrider.gateway.openai.tools import ToolPlan
from outrider.gateway.tool_calls import CallPiece, Piece, ToolCallReader, ToolFormat

_ALPHANUMERIC = string.ascii_letters + string.digits


class CallWriter:
    """Reads the calls of each answer of a request as its text comes."""

    def __init__(self, plan: ToolPlan, tool_format: ToolFormat | None, response_id: str) -> None:
        """`response_id`: calls get ids that follow from it, so they are the same once it is resumed."""
        self._plan = plan
        self._response_id = response_id
        self._format = tool_format
        self._readers: dict[int, ToolCallReader] = {}
        self._calling: set[int] = set()

    @property
    def reads(self) -> bool:
        """Whether answers may have calls at all."""
        return self._plan.reader(self._format) is not None

    def message(self, answer: Answer) -> r.AnswerMessage:
        """A whole answer."""
        text = "".join(answer.text)
        reader = self._plan.reader(self._format)
        if reader is None:
            return {"role": "assistant", "content": text}
        content, calls = self._parts(answer, reader.push(text) + reader.finish())
        if not calls:
            return {"role": "assistant", "content": content}
        self._calling.add(answer.index)
        whole = [_whole(call) for call in calls]
        return {"role": "assistant", "content": content or None, "tool_calls": whole}

    def delta(self, answer: Answer, text: str) -> r.AnswerDelta:
        """What is new with more text; empty if that cannot be told yet."""
        reader = self._reader(answer)
        return {"content": text} if reader is None else self._delta(answer, reader.push(text))

    def closing(self, answer: Answer) -> r.AnswerDelta:
        """What was held back."""
        reader = self._reader(answer)
        return {} if reader is None else self._delta(answer, reader.finish())

    def finish_reason(self, answer: Answer) -> str:
        """An answer that ended by itself and has calls waits for their results.

        A call that the request itself named is no choice of the model's: as OpenAI and vLLM have it, "stop".
        """
        chosen = answer.index in self._calling and self._plan.mode != "named"
        return "tool_calls" if chosen and answer.finish_reason == "stop" else answer.finish_reason

    def _reader(self, answer: Answer) -> ToolCallReader | None:
        if answer.index not in self._readers:
            reader = self._plan.reader(self._format)
            if reader is None:
                return None
            self._readers[answer.index] = reader
        return self._readers[answer.index]

    def _delta(self, answer: Answer, pieces: Sequence[Piece]) -> r.AnswerDelta:
        content, calls = self._parts(answer, pieces)
        delta: r.AnswerDelta = {}
        if content:
            delta["content"] = content
        if calls:
            self._calling.add(answer.index)
            delta["tool_calls"] = calls
        return delta

    def _parts(self, answer: Answer, pieces: Sequence[Piece]) -> tuple[str, list[r.ToolCallDelta]]:
        """Text, and calls with their pieces put together."""
        calls: dict[int, r.ToolCallDelta] = {}
        for piece in pieces:
            if not isinstance(piece, CallPiece):
                continue
            if piece.index not in calls:
                calls[piece.index] = self._call(answer, piece)
            else:
                calls[piece.index]["function"]["arguments"] += piece.arguments
        return "".join(piece for piece in pieces if isinstance(piece, str)), list(calls.values())

    def _call(self, answer: Answer, piece: CallPiece) -> r.ToolCallDelta:
        if not piece.name:
            return {"index": piece.index, "function": {"arguments": piece.arguments}}
        return {
            "index": piece.index,
            "id": self._id(answer, piece),
            "type": "function",
            "function": {"name": piece.name, "arguments": piece.arguments},
        }

    def _id(self, answer: Answer, piece: CallPiece) -> str:
        """Mistral's templates take ids of nine letters and digits only."""
        digest = hashlib.sha256(f"{self._response_id}/{answer.index}/{piece.index}".encode())
        if self._format is ToolFormat.MISTRAL:
            return "".join(_ALPHANUMERIC[byte % len(_ALPHANUMERIC)] for byte in digest.digest()[:9])
        return f"call_{digest.hexdigest()[:32]}"


def _whole(call: r.ToolCallDelta) -> r.ToolCall:
    function = call["function"]
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }
