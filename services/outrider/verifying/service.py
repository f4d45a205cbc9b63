"""The Verifier gRPC service: what a call does, in terms of streams, store and engine thread."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from grpc import aio
from opentelemetry import trace

from outrider.core.errors import (
    DeadlineExceededError,
    OutriderError,
    SessionExistsError,
    StoreUnavailableError,
    UnavailableError,
)
from outrider.core.models import check_protocol
from outrider.core.sessions import FinishReason, SessionRecord, SpeculationStats, Usage
from outrider.sessions.store import SessionStore
from outrider.sessions.writer import CommitWriter
from outrider.structured import GrammarCompiler, GrammarMatcher
from outrider.telemetry import names
from outrider.telemetry.tracing import Tracing, context_from
from outrider.verifying.admission import Admission
from outrider.verifying.compiling import grammar_matcher
from outrider.verifying.mailbox import Admit, End, Inward
from outrider.verifying.places import Places
from outrider.verifying.spans import RoundSpans
from outrider.verifying.streams import Attachment, StreamTable, replay
from outrider.wire import convert, metadata
from outrider.wire.errors import abort
from outrider.wire.messages import (
    CancelSession,
    ResumeSession,
    SessionEvent,
    SessionFinished,
    SessionStarted,
    VerifierInfo,
)
from outrider.wire.services import VerifierService
from outrider.wire.v1 import verifier_pb2 as pb

Context = aio.ServicerContext[Any, Any]

_UNREAD_S = 60.0
"""How long a client that gave no deadline may leave an event unread; then its session ends."""


class VerifierServicer(VerifierService):
    """Calls of gateways. Event loop only."""

    def __init__(
        self,
        *,
        info: VerifierInfo,
        admission: Admission,
        compiler: GrammarCompiler,
        places: Places,
        store: SessionStore,
        writer: CommitWriter,
        refuse_when_away: bool,
        streams: StreamTable,
        post: Callable[[Inward], None],
        tracing: Tracing,
        degraded: Callable[[], tuple[str, ...]],
    ) -> None:
        """Args:
        info: what GetInfo answers.
        admission: the bounds of requests.
        compiler: of their grammars.
        places: who may come in.
        store: for new sessions and for those to take over.
        writer: takes new sessions while the store is away ...
        refuse_when_away: ... unless they are to be refused then.
        streams: sessions that live here.
        post: the engine thread's inbox.
        tracing: for request and round spans.
        degraded: what does not work as it should, for GetInfo.
        """
        self._info = info
        self._admission = admission
        self._compiler = compiler
        self._places = places
        self._store = store
        self._refuse_when_away = refuse_when_away
        self._writer = writer
        self._streams = streams
        self._post = post
        self._tracing = tracing
        self._degraded = degraded
        self._arrivals: dict[str, asyncio.Event] = {}  # set once the store has answered
        self._draining = False

    def drain(self) -> None:
        """Admit nobody any more."""
        self._draining = True

    async def GetInfo(
        self, request: pb.VerifierGetInfoRequest, context: Context
    ) -> pb.VerifierGetInfoResponse:
        """What is served here."""
        try:
            check_protocol(request.protocol_version, "the gateway")
        except OutriderError as error:
            await abort(context, error)
        return convert.verifier_info_to_proto(replace(self._info, degraded=self._degraded()))

    async def Generate(self, request: pb.VerifierGenerateRequest, context: Context) -> None:
        """Start a session and stream its tokens."""
        with self._span(context) as span:
            try:
                attachment = await self._start(request, span)
                await self._send(attachment, convert.generate_response, context, span)
            except OutriderError as error:
                await _abort(context, error, span)

    async def Resume(self, request: pb.VerifierResumeRequest, context: Context) -> None:
        """Stream a session again: one that runs here, or one that the store knows."""
        with self._span(context) as span:
            try:
                wanted = convert.resume_from_proto(request)
                span.set_attribute(names.ATTR_SESSION, wanted.session_id)
                attachment = await self._resume(wanted, span)
                await self._send(attachment, convert.resume_response, context, span)
            except OutriderError as error:
                await _abort(context, error, span)

    async def Cancel(self, request: pb.VerifierCancelRequest, context: Context) -> pb.VerifierCancelResponse:
        """End a session; answers when all that it held is free.

        One whose place is still being made in the store is ended as soon as it runs. One that has
        finished by itself meanwhile (a stop string in its last tokens) is cut in the store.
        """
        try:
            cancel = convert.cancel_from_proto(request)
        except OutriderError as error:
            await abort(context, error)
        return pb.VerifierCancelResponse(found=await self._cancel(cancel))

    async def _cancel(self, cancel: CancelSession) -> bool:
        arrival = self._arrivals.get(cancel.session_id)
        if arrival is not None:
            await arrival.wait()
        lived, keep = cancel.session_id in self._streams, cancel.keep_tokens
        if lived:
            self._post(End(cancel.session_id, keep, cancel.reason))
            await self._streams.wait_ended(cancel.session_id)
        finished = self._streams.finished(cancel.session_id)
        # One that lived was cut by the engine thread, unless it had finished there already.
        if finished is not None and keep is not None and keep <= finished.tokens - lived:
            finished.tokens = keep
            self._writer.truncate(cancel.session_id, finished.epoch, keep, cancel.reason)
        return lived or finished is not None

    async def _start(self, request: pb.VerifierGenerateRequest, span: trace.Span) -> Attachment:
        wanted = convert.session_request_from_proto(request, draw_seed=lambda: secrets.randbits(64))
        span.set_attribute(names.ATTR_SESSION, wanted.session_id)
        record = self._admission.record(wanted)
        with self._arriving(record.session_id, record.tenant):
            grammar = await grammar_matcher(self._compiler, record)
            await self._create(record)
            return self._run(record, 0, span, grammar)

    @contextmanager
    def _arriving(self, session_id: str, tenant: str, *, returns: bool = False) -> Iterator[None]:
        """Hold a place and the id while the store is asked."""
        if self._draining:
            raise UnavailableError("the verifier is stopping")
        if session_id in self._streams or session_id in self._arrivals:
            raise SessionExistsError(f"session {session_id} runs here already")
        self._places.take(session_id, tenant, returns=returns)
        self._arrivals[session_id] = asked = asyncio.Event()
        try:
            yield
        finally:
            if session_id not in self._streams:
                self._places.give_back(session_id)
            del self._arrivals[session_id]
            asked.set()

    async def _create(self, record: SessionRecord) -> None:
        try:
            await self._store.create(record)
        except StoreUnavailableError:
            if self._refuse_when_away:
                raise
            self._writer.create(record)

    async def _resume(self, wanted: ResumeSession, span: trace.Span) -> Attachment:
        session_id, from_token = wanted.session_id, wanted.from_token
        if session_id in self._streams:
            return self._streams.attach(session_id, from_token)
        with self._arriving(session_id, wanted.tenant, returns=True):
            record = await self._store.load(session_id)
            self._admission.check_model(record)
            replay(record.tokens, from_token)  # refuse a wrong from_token before taking the session over
            if record.finish_reason is not None:
                return _over(record, record.finish_reason, from_token)
            self._admission.check_fits(record)
            grammar = await grammar_matcher(self._compiler, record)
            record = await self._store.claim(session_id)
            if record.finish_reason is not None:  # its owner ended it between load and claim
                return _over(record, record.finish_reason, from_token)
            return self._run(record, from_token, span, grammar)

    def _run(
        self, record: SessionRecord, from_token: int, span: trace.Span, grammar: GrammarMatcher | None
    ) -> Attachment:
        """Stream and engine thread learn of the session at once: nothing can come in between."""
        if self._draining:
            raise UnavailableError("the verifier is stopping")
        attachment = self._streams.add(record, from_token=from_token)
        drafters, nodes = self._admission.drafting(record.speculation)
        spans = RoundSpans(self._tracing.tracer, span) if self._tracing.enabled else None
        self._post(Admit(record, drafters, nodes, spans, grammar))
        return attachment

    async def _send(
        self,
        attachment: Attachment,
        response: Callable[[SessionEvent], object],
        context: Context,
        span: trace.Span,
    ) -> None:
        """Write a session's events; when its client goes away, or does not read, the session ends.

        Not a generator: one is left suspended when its call is cancelled, and its `finally` waits.
        """
        try:
            async for event in _traced(attachment.events(), span):
                await _write(context, response(event))
        finally:
            if self._streams.is_current(attachment):
                self._post(End(attachment.session_id))

    @contextmanager
    def _span(self, context: Context) -> Iterator[trace.Span]:
        carrier = metadata.value(_metadata(context), metadata.TRACEPARENT) if self._tracing.enabled else ""
        span = self._tracing.tracer.start_span(names.SPAN_VERIFY_REQUEST, context_from(carrier))
        try:
            yield span
        finally:
            span.end()


def _metadata(context: Context) -> aio.Metadata | None:
    pairs = context.invocation_metadata()
    return aio.Metadata(*pairs) if pairs else None


async def _traced(events: AsyncIterator[SessionEvent], span: trace.Span) -> AsyncIterator[SessionEvent]:
    """The same events; what they tell of the session goes to its span."""
    async for event in events:
        if isinstance(event, SessionStarted):
            span.set_attribute(names.ATTR_EPOCH, event.epoch)
        elif isinstance(event, SessionFinished):
            span.set_attributes(
                {
                    names.ATTR_INPUT_TOKENS: event.usage.prompt_tokens,
                    names.ATTR_OUTPUT_TOKENS: event.usage.completion_tokens,
                    names.ATTR_CACHED_TOKENS: event.usage.cached_prompt_tokens,
                    names.ATTR_FINISH_REASONS: [event.reason.value],
                    names.ATTR_ROUNDS: event.speculation.rounds,
                    names.ATTR_DRAFTED: event.speculation.draft_tokens,
                    names.ATTR_ACCEPTED: event.speculation.accepted_tokens,
                }
            )
        yield event


def _over(record: SessionRecord, reason: FinishReason, from_token: int) -> Attachment:
    """The stream of a session that has ended: what the store knows of it."""
    usage = Usage(len(record.prompt), len(record.tokens))
    finished = SessionFinished(reason, usage, SpeculationStats())
    return Attachment(record, [*replay(record.tokens, from_token), finished])


async def _write(context: Context, response: object) -> None:
    """Raises DeadlineExceededError: the client gave no deadline and does not read."""
    try:
        async with asyncio.timeout(_UNREAD_S if context.time_remaining() is None else None):
            await context.write(response)
    except TimeoutError:
        raise DeadlineExceededError(f"the client has read nothing for {_UNREAD_S:g} s") from None


async def _abort(context: Context, error: OutriderError, span: trace.Span) -> None:
    span.set_attribute(names.ATTR_ERROR_TYPE, type(error).__name__)
    await abort(context, error)
