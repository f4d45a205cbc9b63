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
from google.protobuf.message import DecodeError, Message

from outrider.core.errors import OutriderError
from outrider.gateway.parts import Parts
from outrider.rayserve.tracing import current_traceparent
from outrider.wire import metadata
from outrider.wire.errors import abort
from outrider.wire.guard import unreadable
from outrider.wire.services import GENERATION
from outrider.wire.v1 import generation_pb2 as pb

_LOG = logging.getLogger(__name__)

Metadata = Sequence[tuple[str, str]]
CancelElsewhere = Callable[[str, str], Awaitable[bool]]
"""Ends a generation (first argument) of a tenant (second) at whichever gateway runs it; whether one did."""
Asked = TypeVar("Asked", bound=Message)
Told = TypeVar("Told")


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

    def __init__(self, parts: Parts, max_bytes: int, cancel_elsewhere: CancelElsewhere) -> None:
        """Args:
        parts: of the gateway.
        max_bytes: longest request; Serve's own limit is one for all applications.
        cancel_elsewhere: Serve sends a client's calls to any gateway, so the generation may run at another.
        """
        self._cancel_elsewhere = cancel_elsewhere
        self._servicer = parts.servicer
        self._gate = parts.gate
        self._max_bytes = max_bytes

    def generate(self, request: bytes, call: ServeCall) -> AsyncIterator[pb.GenerateResponse]:
        """See GenerationServicer.Generate."""
        return self._stream("Generate", pb.GenerateRequest, self._servicer.Generate, request, call)

    def resume(self, request: bytes, call: ServeCall) -> AsyncIterator[pb.ResumeResponse]:
        """See GenerationServicer.Resume."""
        return self._stream("Resume", pb.ResumeRequest, self._servicer.Resume, request, call)

    async def cancel(self, request: bytes, call: ServeCall) -> pb.CancelResponse:
        """See GenerationServicer.Cancel."""
        answer = await self._single("Cancel", pb.CancelRequest, self._end, request, call)
        return answer or pb.CancelResponse()

    async def _end(self, request: pb.CancelRequest, context: Any) -> pb.CancelResponse:
        answer = await self._servicer.Cancel(request, context)
        if answer.found:
            return answer
        tenant = self._gate.tenant(context.invocation_metadata())
        return pb.CancelResponse(found=await self._cancel_elsewhere(request.generation_id, tenant))

    async def list_models(self, request: bytes, call: ServeCall) -> pb.ListModelsResponse:
        """See GenerationServicer.ListModels."""
        answer = await self._single(
            "ListModels", pb.ListModelsRequest, self._servicer.ListModels, request, call
        )
        return answer or pb.ListModelsResponse()

    async def _stream(
        self,
        method: str,
        kind: type[Asked],
        behaviour: Callable[[Asked, Any], Awaitable[None]],
        request: bytes,
        call: ServeCall,
    ) -> AsyncIterator[Any]:
        context = _Context(call)
        working = asyncio.create_task(self._run(method, kind, behaviour, request, context))
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
        kind: type[Asked],
        behaviour: Callable[[Asked, Any], Awaitable[Told]],
        request: bytes,
        call: ServeCall,
    ) -> Told | None:
        """The answer; None if the call has got a status of failure.

        Beside such a status no answer is sent, whatever it is. An exception would cost the metadata.
        """
        try:
            return await self._run(method, kind, behaviour, request, _Context(call))
        except CallEndedError:
            return None

    async def _run(
        self,
        method: str,
        kind: type[Asked],
        behaviour: Callable[[Asked, Any], Awaitable[Told]],
        request: bytes,
        context: _Context,
    ) -> Told:
        """Raises CallEndedError: the call has the status of what went wrong."""
        try:
            self._gate.admit(f"/{GENERATION}/{method}", context.invocation_metadata())
            if len(request) > self._max_bytes:
                await context.abort(*_too_large(len(request), self._max_bytes))
            return await behaviour(_parsed(kind, request), context)
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


def _parsed(kind: type[Asked], data: bytes) -> Asked:
    """Raises InvalidRequestError: it is no such message."""
    request = kind()
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise unreadable(str(error)) from None
    return request
