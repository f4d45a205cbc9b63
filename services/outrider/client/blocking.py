"""The blocking client. It may be shared by threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, Unpack, cast

import grpc

from outrider.client.connection import CALL_TIMEOUT_S, GENERATE_TIMEOUT_S, Connection
from outrider.client.course import Course, Progress
from outrider.client.options import Options, Prompt, request_message
from outrider.client.results import Result
from outrider.core.errors import OutriderError, RequestCancelledError, UnavailableError
from outrider.core.models import ModelInfo
from outrider.wire import convert
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import GenerationEvent
from outrider.wire.v1 import generation_pb2 as pb
from outrider.wire.v1 import generation_pb2_grpc


class Client:
    """A connection to a gateway, or to several; a context manager. It connects with the first call."""

    def __init__(self, connection: Connection | str) -> None:
        """`connection`: an address (host:port), or all that there is to say about it."""
        self._connection = Connection(connection) if isinstance(connection, str) else connection
        self._channels = [_open(self._connection, address) for address in self._connection.addresses]
        self._stubs: list[Any] = [
            generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
            for channel in self._channels
        ]
        self._current = 0  # the gateway that is asked first
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end all that runs on it."""
        self._closed.set()
        for channel in self._channels:
            channel.close()

    def generate(
        self, prompt: Prompt, *, timeout_s: float = GENERATE_TIMEOUT_S, **options: Unpack[Options]
    ) -> Result:
        """Generate to the end.

        Raises:
            InvalidRequestError: which field, what was wrong, what is allowed.
            OverloadedError: the queues are full; `retry_after_s` says when to try again.
            UnavailableError: no gateway or verifier is there, after some attempts, or it went away for good.
            DeadlineExceededError: `timeout_s` has passed.
            OutriderError: as the gateway's status says.
        """
        result = Result()
        with self.stream(prompt, timeout_s=timeout_s, **options) as stream:
            for event in stream:
                result.add(event)
        return result.whole()

    def stream(
        self, prompt: Prompt, *, timeout_s: float = GENERATE_TIMEOUT_S, **options: Unpack[Options]
    ) -> Stream:
        """Generate, event by event. A stream that breaks goes on by itself. Errors as of `generate`."""
        request = request_message(prompt, options)
        return Stream(self, Course(self._connection, Progress(), request, timeout_s))

    def resume(
        self, generation_id: str, from_token: int = 0, *, timeout_s: float = GENERATE_TIMEOUT_S
    ) -> Stream:
        """Go on with a generation of which `from_token` tokens have been read, by whomever.

        Raises:
            SessionNotFoundError: there is no such generation, or not any more.
            InvalidRequestError: it has fewer tokens.
            OutriderError: as of `generate`.
        """
        return Stream(self, Course(self._connection, Progress(generation_id, from_token), None, timeout_s))

    def cancel(self, generation_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        """End a generation; its stream then finishes as CANCELLED. False: none of that id runs there."""
        request = pb.CancelRequest(generation_id=generation_id)
        return any(answer.found for answer in self._of_each("Cancel", request, timeout_s))

    def models(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[ModelInfo]:
        """The models served there."""
        answer = next(self._of_each("ListModels", pb.ListModelsRequest(), timeout_s))
        return [convert.model_info_from_proto(model) for model in answer.models]

    def call(self, course: Course) -> Any:
        """Make the next call of a generation."""
        request = course.request
        method = "Resume" if isinstance(request, pb.ResumeRequest) else "Generate"
        return self._call(self._current, method, request, course.remaining_s)

    def move_on(self, pause_s: float) -> None:
        """Wait, then have the next gateway asked.

        Raises:
            UnavailableError: this client was closed.
        """
        if self._closed.wait(pause_s):
            raise UnavailableError("the client was closed")
        self._current = (self._current + 1) % len(self._stubs)

    def _of_each(self, method: str, request: object, timeout_s: float) -> Iterator[Any]:
        """Answers of the gateways, one after the other; the error of the last one if none answers."""
        answered = False
        for index in range(len(self._stubs)):
            try:
                answer = self._call((self._current + index) % len(self._stubs), method, request, timeout_s)
            except (UnavailableError, RequestCancelledError):
                if not answered and index == len(self._stubs) - 1:
                    raise
            else:
                answered = True
                yield answer

    def _call(self, gateway: int, method: str, request: object, timeout_s: float) -> Any:
        with _explained():
            call: Callable[..., Any] = getattr(self._stubs[gateway], method)
            return call(request, timeout=timeout_s, metadata=self._connection.metadata())


class Stream:
    """Events of one generation: an iterator, and a context manager that gives it up at the end."""

    def __init__(self, client: Client, course: Course) -> None:
        self._client = client
        self._course = course
        self._closed = False
        self._call = client.call(course)

    def __iter__(self) -> Iterator[GenerationEvent]:
        return self

    def __next__(self) -> GenerationEvent:
        while True:
            try:
                with _explained():
                    message = next(self._call)
            except OutriderError as error:
                self._go_on(error)
                continue
            new = self._course.take(convert.generation_event_from_proto(message))
            if new is not None:
                return new

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody reads any more: the gateway lets go of it at once. Idempotent."""
        self._closed = True
        self._call.cancel()

    def _go_on(self, error: OutriderError) -> None:
        """Ask the next gateway.

        Raises:
            OutriderError: none is to be asked.
        """
        if self._closed:
            raise error
        self._client.move_on(self._course.failed(error))
        self._call = self._client.call(self._course)
        if self._closed:  # meanwhile, by another thread
            self._call.cancel()
            raise RequestCancelledError("the stream was closed")


def _open(connection: Connection, address: str) -> grpc.Channel:
    if connection.credentials is None:
        return grpc.insecure_channel(address, options=connection.options())
    return grpc.secure_channel(address, connection.credentials, options=connection.options())


@contextmanager
def _explained() -> Iterator[None]:
    """gRPC's status as the error that it stands for."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(cast(grpc.Call, error)) from None
    except ValueError as error:  # so says gRPC of a channel that was closed
        raise UnavailableError(str(error)) from None
