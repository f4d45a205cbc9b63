"""One request and its answer: read, run, send, and stop as soon as the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from outrider.core.errors import InvalidRequestError, OutriderError, describe
from outrider.gateway.admission import PromptAdmission
from outrider.gateway.generations import Generations
from outrider.gateway.observation import Caller, Observer
from outrider.gateway.openai.answers import Answers
from outrider.gateway.openai.bodies import digest_of_body, parse_body, read_body
from outrider.gateway.openai.budget import Budget
from outrider.gateway.openai.generation_body import GenerationBody
from outrider.gateway.openai.positions import FIELD, Positions
from outrider.gateway.openai.shapes import Identity, Shape
from outrider.gateway.openai.streaming import EventStream
from outrider.gateway.playing import Begun, PlayEvent, parts_of, play
from outrider.gateway.presentation import Call
from outrider.gateway.replaying import replay
from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import VerifierInfo

Events = AsyncGenerator[tuple[int, PlayEvent]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the two endpoints differ in."""

    route: str
    prefix: str  # of its answers' ids
    operation: str  # names.OPERATION_*
    body: type[GenerationBody]
    shape: Callable[[Any, Answers, TextTokenizer, VerifierInfo, Identity], Shape]
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
            tenant=getattr(request.state, "tenant", ""),
        )
        last = request.headers.get(FIELD)
        identity = Identity.new(self._endpoint.prefix)
        positions = self._positions(last, body, identity, len(asked))
        call = Call(self._endpoint.operation, identity.created, digest_of_body(raw) if body.streams else b"")
        parts = parts_of(asked, positions.session_id, lambda: PromptAdmission(body.prompt_options, call))
        if last is None:
            events = play(self._generations, parts, caller)
        else:
            again = replay(self._generations, parts, caller, positions.delivered, field=FIELD)
            events = _dated(again, identity)
        answers = Answers(body.candidates, only_echo=body.only_echo)
        shape = self._endpoint.shape(body, answers, self._generations.tokenizer, info, identity)
        if body.streams:
            stream = EventStream(send, answers, shape, positions, waits=body.tells_prompt_logprobs)
            answer = stream.write(events, with_usage=body.include_usage)
        else:
            answer = self._whole(events, answers, shape, body, request, send)
        return await unless_gone(request, answer, self._generations.answer_s)

    def _positions(
        self, last: str | None, body: GenerationBody, identity: Identity, choices: int
    ) -> Positions:
        """Where the client stands: at the start, or where an earlier stream ended. Its `identity` goes on.

        Raises:
            InvalidRequestError: `last` is no id of such a stream's events.
        """
        if last is None:
            return Positions.at_start(identity.id, choices)
        if not body.streams:
            raise InvalidRequestError(f"{FIELD} needs stream to be true", field=FIELD)
        positions = Positions.parse(last, prefix=self._endpoint.prefix, choices=choices)
        identity.id = positions.response_id
        return positions

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


async def _dated(events: Events, identity: Identity) -> Events:
    """The same; `identity` gets the date that the answer had at first."""
    async with aclosing(events):
        async for index, event in events:
            if not index and isinstance(event, Begun):
                identity.created = event.created
            yield index, event


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
