"""The blocking client. It may be shared by threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, Unpack, cast

import grpc

from outrider.client.connection import CALL_TIMEOUT_S, GENERATE_TIMEOUT_S, Connection
from outrider.client.options import Options, Prompt, request_message
from outrider.client.results import Result
from outrider.core.errors import UnavailableError
from outrider.core.models import ModelInfo
from outrider.wire import convert
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import GenerationEvent
from outrider.wire.v1 import generation_pb2 as pb
from outrider.wire.v1 import generation_pb2_grpc


class Client:
    """A connection to a gateway; a context manager. It connects with the first call."""

    def __init__(self, connection: Connection | str) -> None:
        """`connection`: an address (host:port), or all that there is to say about it."""
        self._connection = Connection(connection) if isinstance(connection, str) else connection
        self._channel = _open(self._connection)
        self._stub: Any = generation_pb2_grpc.GenerationStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end all that runs on it."""
        self._channel.close()

    def generate(
        self, prompt: Prompt, *, timeout_s: float = GENERATE_TIMEOUT_S, **options: Unpack[Options]
    ) -> Result:
        """Generate to the end.

        Raises:
            InvalidRequestError: which field, what was wrong, what is allowed.
            OverloadedError: the queues are full; `retry_after_s` says when to try again.
            UnavailableError: no gateway or verifier is there, after some attempts, or it went away.
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
        """Generate, event by event. Errors as of `generate`, also while it is read."""
        return Stream(self._call(self._stub.Generate, request_message(prompt, options), timeout_s))

    def cancel(self, generation_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        """End a generation; its stream then finishes as CANCELLED. False: none of that id runs there."""
        request = pb.CancelRequest(generation_id=generation_id)
        return bool(self._call(self._stub.Cancel, request, timeout_s).found)

    def models(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[ModelInfo]:
        """The models served there."""
        answer = self._call(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)
        return [convert.model_info_from_proto(model) for model in answer.models]

    def _call(self, method: Callable[..., Any], request: object, timeout_s: float) -> Any:
        with _explained():
            return method(request, timeout=timeout_s, metadata=self._connection.metadata())


class Stream:
    """Events of one generation: an iterator, and a context manager that ends it if it still runs."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[GenerationEvent]:
        return self

    def __next__(self) -> GenerationEvent:
        with _explained():
            message = next(self._call)
        return convert.generation_event_from_proto(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody reads any more: the generation ends at once. Idempotent."""
        self._call.cancel()


def _open(connection: Connection) -> grpc.Channel:
    if connection.credentials is None:
        return grpc.insecure_channel(connection.address, options=connection.options())
    return grpc.secure_channel(connection.address, connection.credentials, options=connection.options())


@contextmanager
def _explained() -> Iterator[None]:
    """gRPC's status as the error that it stands for."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(cast(grpc.Call, error)) from None
    except ValueError as error:  # so says gRPC of a channel that was closed
        raise UnavailableError(str(error)) from None
