"""`outrider.v1.Generation` behind Serve's gRPC proxy: our servicer, with the context that Serve has for it.

Serve hands messages over one by one as a method yields them, and tells a method that its client has gone, or
has no time left, by cancelling it. It drops the trailing metadata of a stream that ends with an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from outrider.core.errors import OutriderError
from outrider.gateway.parts import Parts
from outrider.rayserve.tracing import current_traceparent
from outrider.wire import metadata
from outrider.wire.errors import abort
from outrider.wire.services import GENERATION
from outrider.wire.v1 import generation_pb2 as pb

_LOG = logging.getLogger(__name__)

Metadata = Sequence[tuple[str, str]]
Answer = TypeVar("Answer", bound=Message)


class ServeCall(Protocol):
    """Serve's RayServegRPCContext, as far as it is used."""

    def invocation_metadata(self) -> Metadata: ...

    def peer(self) -> str: ...

    def set_code(self, code: grpc.StatusCode) -> None: ...

    def set_details(self, details: str) -> None: ...

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None: ...


class CallEndedError(Exception):
    """A call has its status. Serve logs this, so it says nothing of the request."""


class GenerationIngress:
    """Answers the calls of Serve's proxy."""

    def __init__(self, parts: Parts, max_bytes: int) -> None:
        """`max_bytes`: longest request; Serve's own limit is one for all applications."""
        self._servicer = parts.servicer
        self._gate = parts.gate
        self._max_bytes = max_bytes

    def generate(self, request: pb.GenerateRequest, call: ServeCall) -> AsyncIterator[pb.GenerateResponse]:
        """See GenerationServicer.Generate."""
        return self._stream("Generate", self._servicer.Generate, request, call)

    def resume(self, request: pb.ResumeRequest, call: ServeCall) -> AsyncIterator[pb.ResumeResponse]:
        """See GenerationServicer.Resume."""
        return self._stream("Resume", self._servicer.Resume, request, call)

    async def cancel(self, request: pb.CancelRequest, call: ServeCall) -> pb.CancelResponse:
        """See GenerationServicer.Cancel."""
        return await self._single("Cancel", self._servicer.Cancel, request, call, pb.CancelResponse())

    async def list_models(self, request: pb.ListModelsRequest, call: ServeCall) -> pb.ListModelsResponse:
        """See GenerationServicer.ListModels."""
        empty = pb.ListModelsResponse()
        return await self._single("ListModels", self._servicer.ListModels, request, call, empty)

    async def _stream(
        self, method: str, behaviour: Callable[[Any, Any], Awaitable[None]], request: Message, call: ServeCall
    ) -> AsyncIterator[Any]:
        context = _Context(call)
        working = asyncio.create_task(self._run(method, behaviour, request, context))
        try:
            async for message in context.written(working):
                yield message
        finally:
            # Nobody reads any more, or all was said.
            working.cancel()
            await asyncio.wait((working,))
        working.result()

    async def _single(
        self,
        method: str,
        behaviour: Callable[[Any, Any], Awaitable[Answer]],
        request: Message,
        call: ServeCall,
        empty: Answer,
    ) -> Answer:
        try:
            answer: Answer = await self._run(method, behaviour, request, _Context(call))
            return answer
        except CallEndedError:
            # Beside a status of failure no answer is sent. An exception would cost the metadata.
            return empty

    async def _run(
        self,
        method: str,
        behaviour: Callable[[Any, Any], Awaitable[Any]],
        request: Message,
        context: _Context,
    ) -> Any:
        """Raises CallEndedError: the call has the status of what went wrong."""
        try:
            self._gate.admit(f"/{GENERATION}/{method}", context.invocation_metadata())
            if (size := request.ByteSize()) > self._max_bytes:
                await context.abort(*_too_large(size, self._max_bytes))
            return await behaviour(request, context)
        except CallEndedError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, its text stays here
            if not isinstance(error, OutriderError):
                _LOG.error("%s failed", method, exc_info=error)
            await abort(context, error)  # type: ignore[arg-type]  # it has all that is used


class _Context:
    """What our servicer needs of a grpc.aio.ServicerContext, over what Serve has."""

    def __init__(self, call: ServeCall) -> None:
        self._call = call
        self._metadata = _traced(call.invocation_metadata())
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()  # None: there will be no more

    def invocation_metadata(self) -> Metadata:
        """What the client sent, but Serve's span in the place of the client's."""
        return self._metadata

    def time_remaining(self) -> None:
        """Not known: Serve does not pass the client's deadline on; it cancels when that has come."""

    def peer(self) -> str:
        """The client."""
        return self._call.peer()

    async def write(self, message: Message) -> None:
        """Hand a message to Serve, which takes them as fast as they come, read or not."""
        self._messages.put_nowait(message)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        """End the call with a status. Never returns."""
        self._call.set_code(code)
        self._call.set_details(details)
        self._call.set_trailing_metadata(list(trailing_metadata))
        raise CallEndedError(code.name)

    async def written(self, working: asyncio.Task[Any]) -> AsyncIterator[Message]:
        """The messages that `working` writes, until it ends."""
        working.add_done_callback(lambda _: self._messages.put_nowait(None))
        while (message := await self._messages.get()) is not None:
            yield message


def _traced(sent: Metadata) -> Metadata:
    if not (span := current_traceparent()):
        return sent
    others = [(name, text) for name, text in sent if name != metadata.TRACEPARENT]
    return [*others, (metadata.TRACEPARENT, span)]


def _too_large(size: int, most: int) -> tuple[grpc.StatusCode, str]:
    """As gRPC's own servers say it."""
    return grpc.StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {most})"
