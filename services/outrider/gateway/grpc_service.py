"""The `outrider.v1.Generation` service."""

from __future__ import annotations

import asyncio

from grpc import aio

from outrider.core.errors import (
    DeadlineExceededError,
    OutriderError,
    SessionNotFoundError,
    UnavailableError,
    describe,
)
from outrider.gateway.generation import Generation
from outrider.gateway.generations import Generations, draw_seed
from outrider.gateway.observation import Caller, Observer, safe_request_id
from outrider.telemetry import names
from outrider.wire import convert, metadata
from outrider.wire.errors import abort
from outrider.wire.services import GENERATION, GenerationService
from outrider.wire.v1 import generation_pb2 as pb

_ROUTE = f"{GENERATION}/Generate"


class GenerationServicer(GenerationService):
    """Serves `Generations` over gRPC."""

    def __init__(self, generations: Generations, observer: Observer) -> None:
        self._generations = generations
        self._observer = observer

    async def Generate(
        self,
        request: pb.GenerateRequest,
        context: aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse],
    ) -> None:
        """Stream a generation; it ends at once when the client goes away, and when it does not read."""
        outcome = "cancelled"
        try:
            asked = convert.generation_request_from_proto(request, draw_seed=draw_seed)
            async with self._generations.open(asked, _caller(request, context)) as generation:
                await self._send(generation, context)
            outcome = "ok"
        except OutriderError as error:
            outcome = describe(error).label
            await abort(context, error)
        except Exception:
            outcome = "internal"
            raise
        finally:
            self._observer.metrics.request(_ROUTE, outcome)

    async def Resume(
        self, request: pb.ResumeRequest, context: aio.ServicerContext[pb.ResumeRequest, pb.ResumeResponse]
    ) -> None:
        """Go on with a generation whose stream was lost."""
        await abort(context, SessionNotFoundError("no such generation"))

    async def _send(
        self, generation: Generation, context: aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse]
    ) -> None:
        """Write all events. Not a generator: one is left suspended when its call is cancelled.

        Raises:
            DeadlineExceededError: the client has not read them in time.
            OutriderError: the generation failed.
        """
        try:
            async with asyncio.timeout(self._generations.answer_s):
                await context.write(convert.generation_event_to_proto(generation.started))
                async for event in generation.events():
                    await context.write(convert.generation_event_to_proto(event))
        except TimeoutError:
            raise DeadlineExceededError("the client has not read the answer in time") from None

    async def Cancel(
        self, request: pb.CancelRequest, context: aio.ServicerContext[pb.CancelRequest, pb.CancelResponse]
    ) -> pb.CancelResponse:
        """End a generation of this gateway, whichever API it came in by."""
        return pb.CancelResponse(found=await self._generations.cancel(request.generation_id))

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


def _caller(
    request: pb.GenerateRequest, context: aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse]
) -> Caller:
    sent = aio.Metadata(*(context.invocation_metadata() or ()))
    return Caller(
        operation=names.OPERATION_CHAT
        if request.WhichOneof("input") == "chat"
        else names.OPERATION_COMPLETION,
        request_id=safe_request_id(metadata.value(sent, metadata.REQUEST_ID)),
        traceparent=metadata.value(sent, metadata.TRACEPARENT),
        timeout_s=context.time_remaining(),
    )
