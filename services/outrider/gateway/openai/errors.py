"""Exceptions as OpenAI's error bodies: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException

from outrider.core.errors import (
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
    describe,
)
from outrider.core.limits import MAX_QUOTED_CHARS

_CODES: dict[str, str | None] = {
    "invalid": None,
    "prompt_too_long": "context_length_exceeded",
    "unauthenticated": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
}
"""OpenAI's own codes where it has one; otherwise our label."""


class BodyTooLargeError(InvalidRequestError):
    """The body is longer than `gateway.max_body_bytes`: HTTP 413."""


class MediaTypeError(InvalidRequestError):
    """The body is said not to be JSON: HTTP 415."""


class BodyTimeoutError(InvalidRequestError):
    """The body did not come in time: HTTP 408."""


_STATUS: dict[type[Exception], int] = {BodyTooLargeError: 413, MediaTypeError: 415, BodyTimeoutError: 408}
"""HTTP statuses that gRPC has no match for."""


def error_body(error: Exception) -> dict[str, Any]:
    """The body for `error`. The text of an exception that is none of ours stays here."""
    row = describe(error)
    message = str(error) if isinstance(error, OutriderError) else "internal error"
    param = error.field if isinstance(error, InvalidRequestError) else None
    return _body(message, row.openai_type, param, _CODES.get(row.label, row.label))


def error_response(error: Exception) -> JSONResponse:
    """Status, body and headers for `error`."""
    status = _STATUS.get(type(error)) or describe(error).http_status
    headers = {}
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif isinstance(error, UnavailableError):
        headers["Retry-After"] = "1"
    elif isinstance(error, UnauthenticatedError):
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status, headers)


def from_validation(error: ValidationError) -> InvalidRequestError:
    """The first thing that is wrong with a body, with the field's name and without its value."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = _path(first["loc"])
    if not field:
        return InvalidRequestError(f"the body is wrong: {first['msg']}")
    more = error.error_count() - 1
    also = f" ({more} more field{'s' if more > 1 else ''} wrong)" if more else ""
    return InvalidRequestError(f"{field}: {_message(first)}{also}", field=field)


def install(app: FastAPI) -> None:
    """Answer every error, also FastAPI's own, with OpenAI's body."""

    async def on_outrider(_: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    async def on_http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        body = _body(str(error.detail), kind, None, None)
        return JSONResponse(body, error.status_code, dict(error.headers or {}))

    app.add_exception_handler(OutriderError, on_outrider)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_outrider)


def _body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _message(error: ErrorDetails) -> str:
    text = error["msg"].removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _path(loc: tuple[int | str, ...]) -> str:
    """`("messages", 0, "content")` as `messages[0].content`. A name may be the client's own: it is cut."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:MAX_QUOTED_CHARS]
