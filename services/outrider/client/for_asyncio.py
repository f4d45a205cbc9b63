"""The client for asyncio. It belongs to the event loop that it is made in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Self, Unpack

from grpc import aio

from outrider.client.connection import CALL_TIMEOUT_S, GENERATE_TIMEOUT_S, Connection
from outrider.client.options import Options, Prompt, request_message
from outrider.client.results import Result
from outrider.core.errors import RequestCancelledError, UnavailableError
from outrider.core.models import ModelInfo
from outrider.wire import convert, services
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import GenerationEvent
from outrider.wire.v1 import generation_pb2 as pb


class AsyncClient:
    """A connection to a gateway; an async context manager. It connects with the first call."""

    def __init__(self, connection: Connection | str) -> None:
        """`connection`: an address (host:port), or all that there is to say about it."""
        self._connection = Connection(connection) if isinstance(connection, str) else connection
        self._channel = _open(self._connection)
        self._client = services.generation_client(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and end all that runs on it."""
        await self._channel.close()

    async def generate(
        self, prompt: Prompt, *, timeout_s: float = GENERATE_TIMEOUT_S, **options: Unpack[Options]
    ) -> Result:
        """Generate to the end. A task that is cancelled meanwhile ends the generation.

        Raises:
            InvalidRequestError: which field, what was wrong, what is allowed.
            OverloadedError: the queues are full; `retry_after_s` says when to try again.
            UnavailableError: no gateway or verifier is there, after some attempts, or it went away.
            DeadlineExceededError: `timeout_s` has passed.
            OutriderError: as the gateway's status says.
        """
        result = Result()
        async with self.stream(prompt, timeout_s=timeout_s, **options) as stream:
            async for event in stream:
                result.add(event)
        return result.whole()

    def stream(
        self, prompt: Prompt, *, timeout_s: float = GENERATE_TIMEOUT_S, **options: Unpack[Options]
    ) -> AsyncStream:
        """Generate, event by event. Errors as of `generate`, also while it is read."""
        message = request_message(prompt, options)
        with _explained():
            call = self._client.Generate(message, timeout=timeout_s, metadata=self._connection.metadata())
        return AsyncStream(call)

    async def cancel(self, generation_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        """End a generation; its stream then finishes as CANCELLED. False: none of that id runs there."""
        request = pb.CancelRequest(generation_id=generation_id)
        with _explained():
            answer = await self._client.Cancel(
                request, timeout=timeout_s, metadata=self._connection.metadata()
            )
        return answer.found

    async def models(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[ModelInfo]:
        """The models served there."""
        with _explained():
            answer = await self._client.ListModels(
                pb.ListModelsRequest(), timeout=timeout_s, metadata=self._connection.metadata()
            )
        return [convert.model_info_from_proto(model) for model in answer.models]


class AsyncStream:
    """Events of one generation: an async iterator, and a context manager that ends it if it still runs."""

    def __init__(self, call: aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]) -> None:
        self._call = call
        self._events = aiter(call)
        self._closed = False

    def __aiter__(self) -> AsyncIterator[GenerationEvent]:
        return self

    async def __anext__(self) -> GenerationEvent:
        try:
            with _explained():
                message = await anext(self._events)
        except asyncio.CancelledError:
            # gRPC raises it also where the call, not the task, was cancelled.
            if self._closed and not _cancelling():
                raise RequestCancelledError("the stream was closed") from None
            raise
        return convert.generation_event_from_proto(message)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody reads any more: the generation ends at once. Idempotent."""
        self._closed = True
        self._call.cancel()


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _open(connection: Connection) -> aio.Channel:
    if connection.credentials is None:
        return aio.insecure_channel(connection.address, options=connection.options())
    return aio.secure_channel(connection.address, connection.credentials, options=connection.options())


@contextmanager
def _explained() -> Iterator[None]:
    """gRPC's status as the error that it stands for."""
    try:
        yield
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    except aio.UsageError as error:  # so says gRPC of a channel that was closed
        raise UnavailableError(str(error)) from None
