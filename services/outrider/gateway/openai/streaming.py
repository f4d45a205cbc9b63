"""An answer as server-sent events, each with an id that the stream can be taken up from."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.types import Send

from outrider.core.errors import OutriderError, describe
from outrider.gateway.openai.answers import Answer, Answers
from outrider.gateway.openai.errors import error_body
from outrider.gateway.openai.positions import Positions
from outrider.gateway.openai.shapes import Shape
from outrider.gateway.playing import Begun, PlayEvent
from outrider.wire.messages import GenerationDelta, GenerationFinished

_DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
]


class EventStream:
    """Sends one answer. What its client has already goes through the same hands, and is not sent."""

    def __init__(
        self, send: Send, answers: Answers, shape: Shape, positions: Positions, *, waits: bool
    ) -> None:
        """Args:
        send: the connection.
        answers: grow with what is sent.
        shape: makes the events.
        positions: where the client stands.
        waits: the first event of a choice tells of the whole prompt.
        """
        self._send = send
        self._answers = answers
        self._shape = shape
        self._positions = positions
        self._waits = waits
        self._started = False
        self._held: list[bytes] = []  # events before the answer has started

    async def write(self, events: AsyncGenerator[tuple[int, PlayEvent]], *, with_usage: bool) -> str:
        """Send all of it; gives the outcome, for metrics.

        Nothing is sent before there is more to tell than that generations have begun.

        Raises:
            OutriderError: before anything was sent. What fails later is sent as an event.
        """
        outcome = "ok"
        try:
            async with aclosing(events):
                async for index, event in events:
                    if not isinstance(event, Begun):
                        await self._start()
                    await self._take(index, event)
            if with_usage and self._positions.tell_usage():
                await self._event(self._shape.usage())
            await self._body(_DONE)
        except OutriderError as error:
            if not self._started:
                raise
            outcome = describe(error).label
            await self._body(f"data: {_json(error_body(error))}\n\n".encode())
        await self._body(b"", more=False)
        return outcome

    async def _start(self) -> None:
        """Begin to send. One that is still queued may be refused, which is a status until then."""
        if self._started:
            return
        self._started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        for data in self._held:
            await self._body(data)
        self._held.clear()

    async def _take(self, index: int, event: PlayEvent) -> None:
        answer = self._answers.take(index, event)
        if isinstance(event, GenerationDelta):
            chunk = self._shape.delta(answer, event)
            news = self._positions.deliver(index, event)
        elif isinstance(event, GenerationFinished):
            chunk = self._shape.closing(answer)
            news = self._positions.close(index)
        elif self._opens(answer, event):
            chunk = self._shape.opening(answer)
            news = self._positions.begin(index)
        else:
            return
        if news and chunk is not None:
            await self._event(chunk)

    def _opens(self, answer: Answer, event: PlayEvent) -> bool:
        if self._waits and isinstance(event, Begun) and len(answer.prompt) > 1:
            return False
        return answer.prompt_is_told or not self._waits

    async def _event(self, chunk: Any) -> None:
        data = f"id: {self._positions}\ndata: {_json(chunk)}\n\n".encode()
        if self._started:
            await self._body(data)
        else:
            self._held.append(data)

    async def _body(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
