"""The exception tree as gRPC status and back, without a socket."""

from __future__ import annotations

import grpc
import pytest
from grpc import aio

from outrider.core import errors
from outrider.wire import metadata
from outrider.wire.errors import MAX_MESSAGE, from_rpc_error, status_of


def kinds() -> list[type[errors.OutriderError]]:
    found, left = [], [errors.OutriderError]
    while left:
        kind = left.pop()
        found.append(kind)
        left.extend(kind.__subclasses__())
    return [kind for kind in found[1:] if kind.__module__ == errors.__name__]  # others never travel


def through(error: BaseException) -> errors.OutriderError:
    """What the other side gets."""
    code, message, trailing = status_of(error)
    return from_rpc_error(aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*trailing), details=message))


@pytest.mark.parametrize("kind", kinds())
def test_every_error_arrives_as_itself(kind: type[errors.OutriderError]) -> None:
    received = through(kind("what was wrong"))
    assert type(received) is kind
    assert str(received) == "what was wrong"


def test_fields_and_times_arrive() -> None:
    received = through(errors.PromptTooLongError("too long", field="prompt"))
    assert isinstance(received, errors.PromptTooLongError)
    assert received.field == "prompt"
    busy = through(errors.OverloadedError("full", retry_after_s=2.5))
    assert isinstance(busy, errors.OverloadedError)
    assert busy.retry_after_s == 2.5


def test_what_is_none_of_ours_tells_nothing() -> None:
    received = through(ValueError("prompt text that nobody may see"))
    assert type(received) is errors.InternalError
    assert str(received) == "internal error"


def test_long_texts_and_odd_fields_do_not_break_the_status() -> None:
    error = errors.InvalidRequestError("x" * 100_000, field="näme\n")
    _, message, trailing = status_of(error)
    assert len(message) == MAX_MESSAGE
    assert dict(trailing)[metadata.ERROR_FIELD] == "n?me?"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceededError),
        (grpc.StatusCode.CANCELLED, errors.RequestCancelledError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.OverloadedError),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequestError),
        (grpc.StatusCode.NOT_FOUND, errors.SessionNotFoundError),
        (grpc.StatusCode.ALREADY_EXISTS, errors.SessionExistsError),
        (grpc.StatusCode.ABORTED, errors.StaleEpochError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.ModelMismatchError),
        (grpc.StatusCode.UNKNOWN, errors.InternalError),
        (grpc.StatusCode.DATA_LOSS, errors.InternalError),
    ],
)
def test_a_status_that_carries_no_label(code: grpc.StatusCode, kind: type[errors.OutriderError]) -> None:
    received = from_rpc_error(aio.AioRpcError(code, aio.Metadata(), aio.Metadata()))
    assert type(received) is kind
    assert str(received) == code.name


def test_a_message_that_is_too_large_is_no_overload() -> None:
    details = "CLIENT: Received message larger than max (5 vs. 4)"
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    received = from_rpc_error(aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details=details))
    assert type(received) is errors.InvalidRequestError


@pytest.mark.parametrize(
    ("details", "kind"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: ServeReplica",
            errors.UnavailableError,
        ),
        (
            "The actor 0123456789abcdef is unavailable: keepalive. The task may or may not have run.",
            errors.UnavailableError,
        ),
        ("internal error", errors.InternalError),
        ("KeyError: The actor died", errors.InternalError),
    ],
)
def test_a_gateway_that_is_lost_behind_ray_serve_is_away(
    details: str, kind: type[errors.OutriderError]
) -> None:
    code = grpc.StatusCode.INTERNAL
    received = from_rpc_error(aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details=details))
    assert type(received) is kind


@pytest.mark.parametrize("value", ["", "-5", "soon", "9" * 50])
def test_a_senseless_retry_time(value: str) -> None:
    trailing = aio.Metadata((metadata.ERROR_LABEL, "overloaded"), (metadata.RETRY_AFTER_MS, value))
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    received = from_rpc_error(aio.AioRpcError(code, aio.Metadata(), trailing, details="full"))
    assert isinstance(received, errors.OverloadedError)
    assert received.retry_after_s == 1.0


def test_reading_metadata() -> None:
    found = aio.Metadata(("traceparent", "00-x"), ("blob-bin", b"\x00"))
    assert metadata.value(found, metadata.TRACEPARENT) == "00-x"
    assert metadata.value(found, "blob-bin") == ""
    assert metadata.value(None, "traceparent") == ""
    assert metadata.pairs(traceparent="00-x", x_request_id="") == (("traceparent", "00-x"),)
