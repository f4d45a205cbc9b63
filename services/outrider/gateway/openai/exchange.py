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
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from outrider.core.errors import InvalidRequestError, OutriderError, describe
from outrider.gateway.generation import Generation
from outrider.gateway.generations import Generations
from outrider.gateway.observation import Caller, Observer
from outrider.gateway.openai.answers import Answer, Answers
from outrider.gateway.openai.bodies import parse_body, read_body
from outrider.gateway.openai.budget import Budget
from outrider.gateway.openai.errors import error_body
from outrider.gateway.openai.generation_body import GenerationBody
from outrider.gateway.openai.shapes import Shape
from outrider.gateway.playing import PlayEvent, play
from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import GenerationDelta, GenerationFinished, VerifierInfo

_DONE = b"data: [DONE]\n\n"
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
]

Events = AsyncGenerator[tuple[int, PlayEvent]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the two endpoints differ in."""

    route: str
    operation: str  # names.OPERATION_*
    body: type[GenerationBody]
    shape: Callable[[Any, Answers, TextTokenizer, VerifierInfo], Shape]
    fields: Mapping[str, str]  # where core's name of a field is not the body's


class Exchange(Response):
    """A response that runs the request while it sends the answer."""

    def __init__(
        self, endpoint: Endpoint, generations: Generations, observer: Observer, budget: Budget
    ) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._generations = generations
        self._observer = observer
        self._budget = budget
        self._fields: dict[str, str] = {}  # once the body is checked: before, names are its own

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
                error.field = self._fields.get(error.field, error.field)
            raise
        finally:
            self._observer.metrics.request(self._endpoint.route, outcome)

    async def _answer(self, request: Request, send: Send) -> str:
        raw = await read_body(request, self._budget.max_body_bytes)
        body = parse_body(raw, self._endpoint.body)
        body.check()
        info = self._generations.info
        self._budget.check(body, info.model.context_length)
        asked = body.generations()
        self._fields = {**self._endpoint.fields, **body.fields}
        caller = Caller(
            operation=self._endpoint.operation,
            stream=body.streams,
            request_id=getattr(request.state, "request_id", ""),
            traceparent=request.headers.get("traceparent", ""),
        )
        answers = Answers(body.candidates, only_echo=body.only_echo)
        shape = self._endpoint.shape(body, answers, self._generations.tokenizer, info)
        events = play(self._generations, asked, caller, body.prompt_options)
        answer = (
            self._stream(events, answers, shape, body, send)
            if body.streams
            else self._whole(events, answers, shape, body, request, send)
        )
        return await unless_gone(request, answer, self._generations.answer_s)

    async def _whole(
        self,
        events: Events,
        answers: Answers,
        shape: Shape,
        body: GenerationBody,
        request: Request,
        send: Send,
    ) -> str:
        async with aclosing(events):
            async for index, event in events:
                answers.take(index, event)
        whole = shape.whole(answers.best(body.choices))
        await JSONResponse(whole)(request.scope, request.receive, send)
        return "ok"

    async def _stream(
        self, events: Events, answers: Answers, shape: Shape, body: GenerationBody, send: Send
    ) -> str:
        waits = body.tells_prompt_logprobs
        started = False
        outcome = "ok"
        try:
            async with aclosing(events):
                async for index, event in events:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                    chunk = _chunk(answers.take(index, event), event, shape, waits=waits)
                    if chunk is not None:
                        await _send_event(send, chunk)
            if body.include_usage:
                await _send_event(send, shape.usage())
            await _send(send, _DONE)
        except OutriderError as error:
            if not started:
                raise
            outcome = describe(error).label
            await _send_event(send, error_body(error))
        await _send(send, b"", more=False)
        return outcome


def _chunk(answer: Answer, event: PlayEvent, shape: Shape, *, waits: bool) -> Any | None:
    """The event of a stream that `event` becomes; `waits`: the first one tells of the whole prompt."""
    if isinstance(event, GenerationDelta):
        return shape.delta(answer, event)
    if isinstance(event, GenerationFinished):
        return shape.closing(answer)
    if waits and isinstance(event, Generation) and len(answer.prompt) > 1:
        return None
    return shape.opening(answer) if answer.prompt_is_told or not waits else None


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
