"""The client for asyncio. It belongs to the event loop that it is made in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar, Unpack

from grpc import aio

from outrider.client.connection import CALL_TIMEOUT_S, GENERATE_TIMEOUT_S, Connection
from outrider.client.course import Course, Progress
from outrider.client.options import Options, Prompt, request_message
from outrider.client.results import Result
from outrider.core.errors import OutriderError, RequestCancelledError, UnavailableError
from outrider.core.models import ModelInfo
from outrider.wire import convert, services
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import GenerationEvent
from outrider.wire.v1 import generation_pb2 as pb

Answer = TypeVar("Answer")


class AsyncClient:
    """A connection to a gateway, or to several; an async context manager. It connects with the first call."""

    def __init__(self, connection: Connection | str) -> None:
        """`connection`: an address (host:port), or all that there is to say about it."""
        self._connection = Connection(connection) if isinstance(connection, str) else connection
        self._channels = [_open(self._connection, address) for address in self._connection.addresses]
        self._clients = [services.generation_client(channel) for channel in self._channels]
        self._current = 0  # the gateway that is asked first
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and end all that runs on it."""
        self._closed = True
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def generate(
        self, prompt: Prompt, *, timeout_s: float = GENERATE_TIMEOUT_S, **options: Unpack[Options]
    ) -> Result:
        """Generate to the end. A task that is cancelled meanwhile gives the generation up.

        Raises:
            InvalidRequestError: which field, what was wrong, what is allowed.
            OverloadedError: the queues are full; `retry_after_s` says when to try again.
            UnavailableError: no gateway or verifier is there, after some attempts, or it went away for good.
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
        """Generate, event by event. A stream that breaks goes on by itself. Errors as of `generate`."""
        request = request_message(prompt, options)
        return AsyncStream(self, Course(self._connection, Progress(), request, timeout_s))

    def resume(
        self, generation_id: str, from_token: int = 0, *, timeout_s: float = GENERATE_TIMEOUT_S
    ) -> AsyncStream:
        """Go on with a generation of which `from_token` tokens have been read, by whomever.

        Raises:
            SessionNotFoundError: there is no such generation, or not any more.
            InvalidRequestError: it has fewer tokens.
            OutriderError: as of `generate`.
        """
        progress = Progress(generation_id, from_token)
        return AsyncStream(self, Course(self._connection, progress, None, timeout_s))

    async def cancel(self, generation_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        """End a generation; its stream then finishes as CANCELLED. False: none of that id runs there."""
        request = pb.CancelRequest(generation_id=generation_id)
        sent = self._connection.metadata()
        async for answer in self._of_each(
            lambda client: client.Cancel(request, timeout=timeout_s, metadata=sent)
        ):
            if answer.found:
                return True
        return False

    async def models(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[ModelInfo]:
        """The models served there."""
        sent = self._connection.metadata()
        answer = await anext(
            self._of_each(
                lambda client: client.ListModels(pb.ListModelsRequest(), timeout=timeout_s, metadata=sent)
            )
        )
        return [convert.model_info_from_proto(model) for model in answer.models]

    def call(self, course: Course) -> aio.UnaryStreamCall[Any, Any]:
        """Make the next call of a generation."""
        request, client = course.request, self._clients[self._current]
        sent, timeout_s = self._connection.metadata(), course.remaining_s
        with _explained():
            if isinstance(request, pb.ResumeRequest):
                return client.Resume(request, timeout=timeout_s, metadata=sent)
            return client.Generate(request, timeout=timeout_s, metadata=sent)

    async def move_on(self, pause_s: float) -> None:
        """Wait, then have the next gateway asked.

        Raises:
            UnavailableError: this client was closed.
        """
        if pause_s:
            await asyncio.sleep(pause_s)
        if self._closed:
            raise UnavailableError("the client was closed")
        self._current = (self._current + 1) % len(self._clients)

    async def _of_each(
        self, ask: Callable[[services.GenerationClient], Awaitable[Answer]]
    ) -> AsyncIterator[Answer]:
        """Answers of the gateways, one after the other; the error of the last one if none answers."""
        answered = False
        for index in range(len(self._clients)):
            try:
                with _explained():
                    answer = await ask(self._clients[(self._current + index) % len(self._clients)])
            except (UnavailableError, RequestCancelledError):
                if not answered and index == len(self._clients) - 1:
                    raise
            else:
                answered = True
                yield answer


class AsyncStream:
    """Events of one generation: an async iterator, and a context manager that gives it up at the end."""

    def __init__(self, client: AsyncClient, course: Course) -> None:
        self._client = client
        self._course = course
        self._closed = False
        self._call = client.call(course)
        self._events = aiter(self._call)

    def __aiter__(self) -> AsyncIterator[GenerationEvent]:
        return self

    async def __anext__(self) -> GenerationEvent:
        while True:
            try:
                message = await self._message()
            except OutriderError as error:
                await self._go_on(error)
                continue
            new = self._course.take(convert.generation_event_from_proto(message))
            if new is not None:
                return new

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody reads any more: the gateway lets go of it at once. Idempotent."""
        self._closed = True
        self._call.cancel()

    async def _message(self) -> pb.GenerateResponse | pb.ResumeResponse:
        try:
            with _explained():
                message: pb.GenerateResponse | pb.ResumeResponse = await anext(self._events)
                return message
        except asyncio.CancelledError:
            # gRPC raises it also where the call, not the task, was cancelled.
            if _cancelling():
                raise
            raise RequestCancelledError("the stream was closed") from None

    async def _go_on(self, error: OutriderError) -> None:
        """Ask the next gateway.

        Raises:
            OutriderError: none is to be asked.
        """
        if self._closed:
            raise error
        await self._client.move_on(self._course.failed(error))
        if self._closed:
            raise RequestCancelledError("the stream was closed")
        self._call = self._client.call(self._course)
        self._events = aiter(self._call)


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _open(connection: Connection, address: str) -> aio.Channel:
    if connection.credentials is None:
        return aio.insecure_channel(address, options=connection.options())
    return aio.secure_channel(address, connection.credentials, options=connection.options())


@contextmanager
def _explained() -> Iterator[None]:
    """gRPC's status as the error that it stands for."""
    try:
        yield
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    except aio.UsageError as error:  # so says gRPC of a channel that was closed
        raise UnavailableError(str(error)) from None
