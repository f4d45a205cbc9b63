"""The Verifier gRPC service: what a call does, in terms of sessions that come, run and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from grpc import aio
from opentelemetry import trace

from outrider.core.errors import OutriderError
from outrider.core.models import check_protocol
from outrider.sessions.writer import CommitWriter
from outrider.telemetry import names
from outrider.telemetry.tracing import Tracing, context_from
from outrider.verifying.arrivals import Arrivals
from outrider.verifying.leaving import Leaving
from outrider.verifying.mailbox import End, Inward
from outrider.verifying.opening import Opening
from outrider.verifying.sending import send
from outrider.verifying.streams import StreamTable
from outrider.verifying.takeover import Takeover
from outrider.wire import convert, metadata
from outrider.wire.errors import abort
from outrider.wire.messages import CancelSession, VerifierInfo, VerifierLoad
from outrider.wire.services import VerifierService
from outrider.wire.v1 import verifier_pb2 as pb

Context = aio.ServicerContext[Any, Any]


class VerifierServicer(VerifierService):
    """Calls of gateways. Event loop only."""

    def __init__(
        self,
        *,
        info: VerifierInfo,
        arrivals: Arrivals,
        opening: Opening,
        takeover: Takeover,
        leaving: Leaving,
        streams: StreamTable,
        writer: CommitWriter,
        post: Callable[[Inward], None],
        tracing: Tracing,
        degraded: Callable[[], tuple[str, ...]],
        load: Callable[[], VerifierLoad],
    ) -> None:
        """Args:
        info: what GetInfo answers, but for what changes.
        arrivals: sessions on their way in.
        opening: starts sessions.
        takeover: takes them up again.
        leaving: parks them.
        streams: sessions that live here.
        writer: cuts in the store what a late Cancel cuts.
        post: the engine thread's inbox.
        tracing: for request spans.
        degraded: what does not work as it should, for GetInfo.
        load: how busy the verifier is, for GetInfo.
        """
        self._info = info
        self._arrivals = arrivals
        self._opening = opening
        self._takeover = takeover
        self._leaving = leaving
        self._streams = streams
        self._writer = writer
        self._post = post
        self._tracing = tracing
        self._degraded = degraded
        self._load = load

    async def GetInfo(
        self, request: pb.VerifierGetInfoRequest, context: Context
    ) -> pb.VerifierGetInfoResponse:
        """What is served here, and how it is."""
        try:
            check_protocol(request.protocol_version, "the gateway")
        except OutriderError as error:
            await abort(context, error)
        now = replace(
            self._info, degraded=self._degraded(), draining=self._arrivals.closed, load=self._load()
        )
        return convert.verifier_info_to_proto(now)

    async def Generate(self, request: pb.VerifierGenerateRequest, context: Context) -> None:
        """Start a session, or restore one, and stream its tokens."""
        with self._span(context) as span:
            try:
                attachment = await self._opening.open(request, span)
                await send(attachment, convert.generate_response, context, span, self._leaving)
            except OutriderError as error:
                await _abort(context, error, span)

    async def Resume(self, request: pb.VerifierResumeRequest, context: Context) -> None:
        """Stream a session again: one that runs here, or one that the store knows."""
        with self._span(context) as span:
            try:
                wanted = convert.resume_from_proto(request)
                span.set_attribute(names.ATTR_SESSION, wanted.session_id)
                attachment = await self._takeover.resume(wanted, span)
                await send(attachment, convert.resume_response, context, span, self._leaving)
            except OutriderError as error:
                await _abort(context, error, span)

    async def Cancel(self, request: pb.VerifierCancelRequest, context: Context) -> pb.VerifierCancelResponse:
        """End a session, or park it; answers when all that it held is free.

        One whose place is still being made in the store is ended as soon as it runs. One that has
        finished by itself meanwhile (a stop string in its last tokens), or was parked, is cut in the store.
        """
        try:
            cancel = convert.cancel_from_proto(request)
        except OutriderError as error:
            await abort(context, error)
        await self._arrivals.wait(cancel.session_id)
        found = await (self._park(cancel) if cancel.park else self._cancel(cancel))
        return pb.VerifierCancelResponse(found=found)

    async def _park(self, cancel: CancelSession) -> bool:
        if cancel.session_id in self._streams:
            await self._leaving.park(cancel.session_id)
            return True
        return self._streams.finished(cancel.session_id) is not None

    async def _cancel(self, cancel: CancelSession) -> bool:
        lived, keep = cancel.session_id in self._streams, cancel.keep_tokens
        if lived:
            self._post(End(cancel.session_id, keep, cancel.reason))
            await self._streams.wait_ended(cancel.session_id)
        past = self._streams.finished(cancel.session_id)
        if past is None:
            return lived
        if past.parked:
            past.parked, past.tokens = False, past.tokens if keep is None else min(keep, past.tokens)
            self._writer.truncate(cancel.session_id, past.epoch, past.tokens, cancel.reason)
        # One that lived was cut by the engine thread, unless it had finished there already.
        elif keep is not None and keep <= past.tokens - lived:
            past.tokens = keep
            self._writer.truncate(cancel.session_id, past.epoch, keep, cancel.reason)
        return True

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


async def _abort(context: Context, error: OutriderError, span: trace.Span) -> None:
    span.set_attribute(names.ATTR_ERROR_TYPE, type(error).__name__)
    await abort(context, error)
