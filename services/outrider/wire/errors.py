"""The exception tree as gRPC status: code, message, and which error it was in trailing metadata."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import grpc
from grpc import aio

from outrider.core import errors
from outrider.wire import metadata

MAX_MESSAGE = 2048
"""Characters of a status message: it travels in headers, which have a limit."""

_REPLICA_LOST = re.compile(r"The actor (died|\w+ is unavailable)")
"""Ray Serve's words, with INTERNAL, for a call whose replica went away in the middle of it."""

_BY_CODE: dict[grpc.StatusCode, type[errors.OutriderError]] = {
    grpc.StatusCode.CANCELLED: errors.RequestCancelledError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidRequestError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
    grpc.StatusCode.NOT_FOUND: errors.SessionNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: errors.SessionExistsError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.OverloadedError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.ModelMismatchError,
    grpc.StatusCode.ABORTED: errors.StaleEpochError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    grpc.StatusCode.UNIMPLEMENTED: errors.ModelMismatchError,
}


def _labels() -> dict[str, type[errors.OutriderError]]:
    table: dict[str, type[errors.OutriderError]] = {}
    kinds = [errors.OutriderError]
    while kinds:
        kind = kinds.pop()
        kinds.extend(kind.__subclasses__())
        if kind is not errors.OutriderError:
            table.setdefault(errors.describe(kind("")).label, kind)
    return table


_BY_LABEL = _labels()


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Code, message and trailing metadata for `error`.

    The text of an exception that is none of ours may hold anything, so it stays here.
    """
    row = errors.describe(error)
    message = str(error) if isinstance(error, errors.OutriderError) else "internal error"
    trailing = [(metadata.ERROR_LABEL, row.label)]
    field = getattr(error, "field", None)
    if isinstance(error, errors.InvalidRequestError) and field:
        trailing.append((metadata.ERROR_FIELD, _printable(field)))
    if isinstance(error, errors.OverloadedError):
        trailing.append((metadata.RETRY_AFTER_MS, str(max(0, round(error.retry_after_s * 1000)))))
    return grpc.StatusCode[row.grpc_code], message[:MAX_MESSAGE], tuple(trailing)


async def abort(context: aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """End a call with the status that `error` stands for. Never returns."""
    code, message, trailing = status_of(error)
    await context.abort(code, message, trailing)


def from_rpc_error(error: aio.AioRpcError | grpc.Call) -> errors.OutriderError:
    """The error that a peer's status stands for: by its label, else by its code."""
    trailing = error.trailing_metadata()
    message = (error.details() or error.code().name)[:MAX_MESSAGE]
    kind = _BY_LABEL.get(metadata.value(trailing, metadata.ERROR_LABEL))
    if kind is None:
        return _from_code(error.code(), message)
    if issubclass(kind, errors.InvalidRequestError):
        return kind(message, field=metadata.value(trailing, metadata.ERROR_FIELD) or None)
    if issubclass(kind, errors.OverloadedError):
        return kind(message, retry_after_s=_seconds(metadata.value(trailing, metadata.RETRY_AFTER_MS)))
    return kind(message)


def _from_code(code: grpc.StatusCode, message: str) -> errors.OutriderError:
    # gRPC itself says RESOURCE_EXHAUSTED of a message over the size limit: no use in trying again.
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        return errors.InvalidRequestError(message)
    if code is grpc.StatusCode.INTERNAL and _REPLICA_LOST.match(message):
        return errors.UnavailableError("the gateway was lost in the middle of the call")
    return _BY_CODE.get(code, errors.InternalError)(message)


def _seconds(milliseconds: str) -> float:
    return int(milliseconds) / 1000 if milliseconds.isdecimal() and len(milliseconds) < 10 else 1.0


def _printable(text: str) -> str:
    """Metadata values are printable ASCII; anything else would break the whole status."""
    return "".join(sign if " " <= sign <= "~" else "?" for sign in text)[:256]
