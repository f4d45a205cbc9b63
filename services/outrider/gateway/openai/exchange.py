"""One request and its answer: read, run, send, and stop as soon as the client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from outrider.core.errors import InvalidRequestError, OutriderError, describe
from outrider.gateway.generation import Generation
from outrider.gateway.generations import Generations
from outrider.gateway.observation import Caller, Observer
from outrider.gateway.openai.errors import BodyTooLargeError, error_body, from_validation
from outrider.gateway.openai.requests import ChatRequest, CompletionRequest
from outrider.gateway.openai.shapes import Answer, Shape
from outrider.gateway.playing import PlayEvent, play
from outrider.wire.messages import GenerationDelta, GenerationFinished

_DONE = b"data: [DONE]\n\n"
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the two endpoints differ in."""

    route: str
    operation: str  # names.OPERATION_*
    body: type[ChatRequest] | type[CompletionRequest]
    shape: Callable[[ChatRequest | CompletionRequest], Shape]
    fields: Mapping[str, str]  # where core's name of a field is not the body's


class Exchange(Response):
    """A response that runs the request while it sends the answer."""

    def __init__(
        self, endpoint: Endpoint, generations: Generations, observer: Observer, max_body_bytes: int
    ) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._generations = generations
        self._observer = observer
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; errors before the first byte are raised, later ones are sent as an event."""
        outcome = "cancelled"
        try:
            outcome = await self._answer(Request(scope, receive), send)
        except ClientDisconnect:
            return
        except OutriderError as error:
            outcome = describe(error).label
            if isinstance(error, InvalidRequestError) and error.field is not None:
                error.field = self._endpoint.fields.get(error.field, error.field)
            raise
        finally:
            self._observer.metrics.request(self._endpoint.route, outcome)

    async def _answer(self, request: Request, send: Send) -> str:
        raw = await _read_body(request, self._max_body_bytes)
        try:
            body = self._endpoint.body.model_validate_json(raw)
        except ValidationError as error:
            raise from_validation(error) from None
        caller = Caller(
            operation=self._endpoint.operation,
            stream=body.streams,
            clamp_max_tokens=body.clamps_max_tokens,
            request_id=getattr(request.state, "request_id", ""),
            traceparent=request.headers.get("traceparent", ""),
        )
        shape = self._endpoint.shape(body)
        events = play(self._generations, body.generations(), caller)
        answer = (
            self._stream(events, shape, body.include_usage, send)
            if body.streams
            else self._whole(events, shape, request, send)
        )
        return await unless_gone(request, answer, self._generations.answer_s)

    async def _whole(
        self, events: AsyncGenerator[tuple[int, PlayEvent]], shape: Shape, request: Request, send: Send
    ) -> str:
        answers: dict[int, Answer] = {}
        async with aclosing(events):
            async for index, event in events:
                if isinstance(event, GenerationDelta):
                    answers[index].text.append(event.text)
                    answers[index].token_ids.extend(event.token_ids)
                else:
                    _note(answers, index, event)
        body = shape.whole([answers[index] for index in sorted(answers)])
        await JSONResponse(body)(request.scope, request.receive, send)
        return "ok"

    async def _stream(
        self, events: AsyncGenerator[tuple[int, PlayEvent]], shape: Shape, include_usage: bool, send: Send
    ) -> str:
        answers: dict[int, Answer] = {}
        started = False
        outcome = "ok"
        try:
            async with aclosing(events):
                async for index, event in events:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                    chunk = _chunk(answers, index, event, shape)
                    if chunk is not None:
                        await _send_event(send, chunk)
            if include_usage:
                await _send_event(send, shape.usage(list(answers.values())))
            await _send(send, _DONE)
        except OutriderError as error:
            if not started:
                raise
            outcome = describe(error).label
            await _send_event(send, error_body(error))
        await _send(send, b"", more=False)
        return outcome


def _note(answers: dict[int, Answer], index: int, event: Generation | GenerationFinished) -> None:
    if isinstance(event, Generation):
        answers[index] = Answer(index, event.started.model, event.started.seed, event.prompt)
    else:
        answers[index].finished = event


def _chunk(answers: dict[int, Answer], index: int, event: PlayEvent, shape: Shape) -> Any | None:
    if isinstance(event, GenerationDelta):
        return shape.delta(answers[index], event)
    _note(answers, index, event)
    if isinstance(event, Generation):
        return shape.opening(answers[index])
    return shape.closing(answers[index], list(answers.values()))


async def _read_body(request: Request, most: int) -> bytes:
    """The body, refused as soon as it is known to be too long.

    Raises:
        InvalidRequestError: it is.
    """
    declared = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
    if size <= most:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                break
            parts.append(part)
    if size > most:
        raise BodyTooLargeError(f"the body must be at most {most} bytes long")
    if not size:
        raise InvalidRequestError("the body is empty: send a JSON object")
    return b"".join(parts)


async def unless_gone(request: Request, answer: Coroutine[Any, Any, str], most_s: float) -> str:
    """Run `answer`; cancel it, and everything it started, if the client disconnects first.

    A client that stays but does not read counts as gone after `most_s` seconds: sending to it has no end.

    Raises:
        ClientDisconnect: the client is gone.
    """
    work = asyncio.create_task(answer)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((work, gone), timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientDisconnect
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _send_event(send: Send, event: Any) -> None:
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    await _send(send, f"data: {text}\n\n".encode())


async def _send(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
