"""A request's body: read within its limit, parsed, checked."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

import jiter
from fastapi import Request
from pydantic import BaseModel, ValidationError

from outrider.core import limits
from outrider.core.errors import InvalidRequestError
from outrider.gateway.openai.errors import BodyTooLargeError, MediaTypeError, from_validation

_MAX_REASON_CHARS = 2 * limits.MAX_QUOTED_CHARS
"""Most of a parser's message that is passed on: it may repeat a key."""

MAX_MEMBERS = 65_536
"""Members of all lists and objects in a body, but for prompts of token ids. Each costs time: 20 microseconds
if it is wrong, for an error is made of every one before the first can be told."""
MAX_ERRORS = 1024
"""Where more is wrong than this, no single error is told."""
_PROMPT = "prompt"

BodyType = TypeVar("BodyType", bound=BaseModel)


async def read_body(request: Request, most: int) -> bytes:
    """The body, refused as soon as it is known to be too long, or not to be JSON.

    Raises:
        InvalidRequestError: it is.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise MediaTypeError(f"content-type must be application/json, got {limits.quoted(kind)}")
    declared = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
    if size <= most:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                break
            parts.append(part)
    if size > most:
        raise BodyTooLargeError(f"the body must be at most {most} bytes long")
    if not size:
        raise InvalidRequestError("the body is empty: send a JSON object")
    return b"".join(parts)


def digest_of_body(raw: bytes) -> bytes:
    """The same for bodies that say the same, which is for the order of fields alone to differ; valid ones."""
    value = jiter.from_json(raw)
    return hashlib.sha256(json.dumps(sorted(value.items())).encode()).digest()


def parse_body(raw: bytes, kind: type[BodyType]) -> BodyType:
    """The body as `kind`. An object names each field once: of two values, which one would count?

    Raises:
        InvalidRequestError: it is not JSON, or not what `kind` allows.
    """
    try:
        value: Any = jiter.from_json(raw, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)
    except ValueError as error:
        reason = str(error)
        if len(reason) > _MAX_REASON_CHARS:
            reason = f"{reason[: _MAX_REASON_CHARS // 2]}...{reason[-_MAX_REASON_CHARS // 4 :]}"
        raise InvalidRequestError(f"the body is not valid JSON: {reason}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("the body must be a JSON object")
    _check_members(value)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        if (count := error.error_count()) > MAX_ERRORS:
            raise InvalidRequestError(f"the body is wrong in {count} places") from None
        raise from_validation(error) from None


def _check_members(body: dict[str, Any]) -> None:
    """Raises InvalidRequestError: there are too many members."""
    left = MAX_MEMBERS
    rest: list[Any] = [body]
    while rest:
        value = rest.pop()
        left -= len(value)
        if left < 0:
            raise InvalidRequestError(
                f"the body's lists and objects must have at most {MAX_MEMBERS} members together"
            )
        members = _without_ids(value) if value is body else value.values() if type(value) is dict else value
        rest += [member for member in members if type(member) in (dict, list)]


def _without_ids(body: dict[str, Any]) -> list[Any]:
    """The values of a body, but for prompts that are lists of token ids: these are bounded by the context."""
    prompt = body.get(_PROMPT)
    if not isinstance(prompt, list):
        return list(body.values())
    others = [value for name, value in body.items() if name != _PROMPT]
    if _are_ids(prompt):
        return others
    return [*others, [one for one in prompt if not (type(one) is list and _are_ids(one))]]


def _are_ids(values: list[Any]) -> bool:
    return set(map(type, values)) <= {int}
