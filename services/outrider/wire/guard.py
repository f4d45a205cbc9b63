"""What no servicer sees to itself: bytes that are no message, requests that never come, and defects.

gRPC answers both with the text of the exception, which may hold anything, and with a code that says
nothing. Here the first is INVALID_ARGUMENT, the last INTERNAL without a text, and a line in the log. For a
request gRPC waits as long as the connection lives; here it has a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from outrider.core.errors import InvalidRequestError, OutriderError
from outrider.wire.errors import abort

_LOG = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 60.0
"""Longest that the request of a call may take to come, from the call's first word on."""

if TYPE_CHECKING:  # neither can be subscripted when it runs
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class _Malformed:
    """Stands for a request that could not be read: only a method can end its call with a status."""

    reason: str


class Guard(aio.ServerInterceptor):
    """Guards every method that takes one request. Streams of requests see to themselves."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        method = handler_call_details.method
        # On the wire one request is a stream of one. Only so can waiting for it end.
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                _streaming(method, handler.unary_stream),
                request_deserializer=_forgiving(handler.request_deserializer),
                response_serializer=handler.response_serializer,
            )
        return grpc.stream_unary_rpc_method_handler(
            _single(method, handler.unary_unary),
            request_deserializer=_forgiving(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


def _forgiving(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Malformed(str(error))

    return read


def _single(method: str, behaviour: Callable[..., Any] | None) -> Callable[[Any, Context], Any]:
    assert behaviour is not None

    async def answer(requests: AsyncIterator[Any], context: Context) -> Any:
        try:
            return await behaviour(await _only(requests), context)
        except Exception as error:  # noqa: BLE001  # that is what it is for
            await _end(method, context, error)

    return answer


def _streaming(method: str, behaviour: Callable[..., Any] | None) -> Callable[[Any, Context], Any]:
    assert behaviour is not None

    async def answer(requests: AsyncIterator[Any], context: Context) -> None:
        try:
            answers = behaviour(await _only(requests), context)
            if not isinstance(answers, AsyncIterator):
                await answers
                return
            async with aclosing(answers):  # type: ignore[type-var]  # servicers' streams are generators
                async for one in answers:
                    await context.write(one)
        except Exception as error:  # noqa: BLE001  # that is what it is for
            await _end(method, context, error)

    return answer


async def _only(requests: AsyncIterator[Any]) -> Any:
    """The request of a call that has one.

    Raises:
        InvalidRequestError: there is none, it cannot be read, or it does not come in time.
    """
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            request = await anext(requests, None)
    except TimeoutError:
        raise InvalidRequestError(f"the request did not come within {REQUEST_TIMEOUT_S:g} s") from None
    if request is None:
        raise InvalidRequestError("the call has no request")
    if isinstance(request, _Malformed):
        raise unreadable(request.reason)
    return request


def unreadable(reason: str) -> InvalidRequestError:
    """What to say of bytes that are no message."""
    return InvalidRequestError(
        f"the request cannot be read ({reason}): texts must be UTF-8, and field types those of "
        "the proto files"
    )


async def _end(method: str, context: Context, error: Exception) -> None:
    if isinstance(error, aio.AbortError):  # it has its status
        raise error
    if isinstance(error, aio.InternalError):  # so says gRPC when the link broke while something was sent
        _LOG.debug("%s: the caller is gone: %s", method, error)
    elif not isinstance(error, OutriderError):
        _LOG.error("%s failed", method, exc_info=error)
    await abort(context, error)
