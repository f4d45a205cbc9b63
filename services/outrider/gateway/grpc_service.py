"""The `outrider.v1.Generation` service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from grpc import aio

from outrider.core.errors import (
    DeadlineExceededError,
    OutriderError,
    RequestCancelledError,
    UnauthenticatedError,
    UnavailableError,
    describe,
)
from outrider.gateway.admission import Admission, PromptAdmission
from outrider.gateway.auth import Authenticator
from outrider.gateway.auth.grpc_gate import tenant_of
from outrider.gateway.generation import Generation
from outrider.gateway.generations import Generations, draw_seed
from outrider.gateway.observation import Caller, Observer, safe_request_id
from outrider.gateway.presentation import Call
from outrider.telemetry import names
from outrider.wire import convert, metadata
from outrider.wire.errors import abort
from outrider.wire.messages import GenerationDelta, GenerationEvent, PromptLogprobs
from outrider.wire.services import GENERATION, GenerationService
from outrider.wire.v1 import generation_pb2 as pb

_GENERATE = f"{GENERATION}/Generate"
_RESUME = f"{GENERATION}/Resume"

Asked = TypeVar("Asked")
Told = TypeVar("Told")


class GenerationServicer(GenerationService):
    """Serves `Generations` over gRPC."""

    def __init__(
        self, generations: Generations, observer: Observer, authenticator: Authenticator, *, unread_s: float
    ) -> None:
        """`unread_s`: how long a client may leave a message unread."""
        self._generations = generations
        self._authenticator = authenticator
        self._observer = observer
        self._unread_s = unread_s

    async def Generate(
        self,
        request: pb.GenerateRequest,
        context: aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse],
    ) -> None:
        """Stream a generation; it is parked at once when the client goes away, and when it does not read."""
        operation = _operation(request)

        def opened() -> AbstractAsyncContextManager[Generation]:
            asked = convert.generation_request_from_proto(request, draw_seed=draw_seed)
            admission = Admission(PromptAdmission(call=Call(operation)))
            return self._generations.open(asked, self._caller(operation, context), admission)

        await self._answer(_GENERATE, context, opened, convert.generation_event_to_proto)

    async def Resume(
        self, request: pb.ResumeRequest, context: aio.ServicerContext[pb.ResumeRequest, pb.ResumeResponse]
    ) -> None:
        """Go on with a generation whose stream was lost. All else as with Generate."""

        def opened() -> AbstractAsyncContextManager[Generation]:
            generation_id, _ = convert.resume_request_from_proto(request)
            caller = self._caller(names.OPERATION_COMPLETION, context)
            return self._generations.resume(generation_id, request.from_token, caller)

        await self._answer(
            _RESUME, context, opened, convert.resumed_event_to_proto, from_token=request.from_token
        )

    async def _answer(
        self,
        route: str,
        context: aio.ServicerContext[Asked, Told],
        opened: Callable[[], AbstractAsyncContextManager[Generation]],
        message: Callable[[GenerationEvent], Told],
        *,
        from_token: int = 0,
    ) -> None:
        outcome = "cancelled"
        try:
            async with opened() as generation:
                await self._send(generation, context, message, from_token)
            outcome = "ok"
        except OutriderError as error:
            outcome = describe(error).label
            await abort(context, error)
        except Exception:
            outcome = "internal"
            raise
        finally:
            self._observer.metrics.request(route, outcome)

    async def _send(
        self,
        generation: Generation,
        context: aio.ServicerContext[Asked, Told],
        message: Callable[[GenerationEvent], Told],
        from_token: int,
    ) -> None:
        """Write all events. Not a generator: one is left suspended when its call is cancelled.

        Raises:
            DeadlineExceededError: the client has not read them in time.
            OutriderError: the generation failed.
        """
        try:
            async with asyncio.timeout(self._generations.answer_s):
                await self._write(context, message(generation.started))
                async for event in generation.events():
                    if _is_news(event, from_token):
                        await self._write(context, message(event))
        except TimeoutError:
            raise DeadlineExceededError("the client has not read the answer in time") from None

    async def _write(self, context: aio.ServicerContext[Asked, Told], message: Told) -> None:
        try:
            async with asyncio.timeout(self._unread_s):
                await context.write(message)
        except TimeoutError:
            # Not a deadline: as one who has gone, it may come back and resume.
            raise RequestCancelledError(f"the client has read nothing for {self._unread_s:g} s") from None

    async def Cancel(
        self, request: pb.CancelRequest, context: aio.ServicerContext[pb.CancelRequest, pb.CancelResponse]
    ) -> pb.CancelResponse:
        """End a generation of this gateway, whichever API it came in by."""
        try:
            found = await self._generations.cancel(request.generation_id, self._tenant(context))
        except UnauthenticatedError as error:
            await abort(context, error)
        return pb.CancelResponse(found=found)

    async def ListModels(
        self,
        request: pb.ListModelsRequest,
        context: aio.ServicerContext[pb.ListModelsRequest, pb.ListModelsResponse],
    ) -> pb.ListModelsResponse:
        """The models that are served."""
        try:
            return pb.ListModelsResponse(models=[convert.model_info_to_proto(self._generations.info.model)])
        except UnavailableError as error:
            await abort(context, error)

    def _caller(self, operation: str, context: aio.ServicerContext[Any, Any]) -> Caller:
        """Raises UnauthenticatedError: the key has become invalid since the call was let in."""
        sent = aio.Metadata(*(context.invocation_metadata() or ()))
        return Caller(
            operation=operation,
            request_id=safe_request_id(metadata.value(sent, metadata.REQUEST_ID)),
            traceparent=metadata.value(sent, metadata.TRACEPARENT),
            timeout_s=context.time_remaining(),
            tenant=self._tenant(context),
        )

    def _tenant(self, context: aio.ServicerContext[Any, Any]) -> str:
        return tenant_of(self._authenticator, context.invocation_metadata())


def _is_news(event: GenerationEvent, from_token: int) -> bool:
    """Whether a client that has `from_token` tokens, and the text that they settled, knows nothing of it."""
    if isinstance(event, PromptLogprobs):
        return not from_token
    # Text alone is that which only the end made certain: no token says that a client has it.
    return not isinstance(event, GenerationDelta) or not event.token_ids or event.first_token >= from_token


def _operation(request: pb.GenerateRequest) -> str:
    return names.OPERATION_CHAT if request.WhichOneof("input") == "chat" else names.OPERATION_COMPLETION
