"""Checks of single fields. Each one names the field, what was wrong and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from outrider.core import limits
from outrider.core.errors import InvalidRequestError, ProtocolError

MAX_TOKENS = 2**20
"""Tokens in one message."""
MAX_NAME = 256
"""Characters in a name, a method or an instance id."""
MAX_TRACEPARENT = 128
"""Characters in a W3C trace context."""
MAX_TEXT = 4 * 2**20
"""Characters in one text."""


@contextmanager
def from_peer(where: str) -> Iterator[None]:
    """What is a wrong request when a client says it is a broken protocol when a service does."""
    try:
        yield
    except InvalidRequestError as error:
        raise ProtocolError(f"{where}: {error}") from error


@contextmanager
def within(message: str) -> Iterator[None]:
    """Put the name of the enclosing message before the field that core's limits name."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{message}.{error}", field=f"{message}.{error.field}") from error


def fail(field: str, problem: str) -> InvalidRequestError:
    """An error about one field; the text begins with its name."""
    return InvalidRequestError(f"{field} {problem}", field=field)


def finite(field: str, value: float) -> float:
    """A number that is neither NaN nor infinite."""
    if not math.isfinite(value):
        raise fail(field, f"is {value}, it must be a finite number")
    return value


def at_most(field: str, value: int, most: int, *, least: int = 0) -> int:
    """An integer in a range."""
    if not least <= value <= most:
        raise fail(field, f"is {value}, it must be between {least} and {most}")
    return value


def data(field: str, value: bytes, *, longest: int) -> bytes:
    """Bytes that are not too many."""
    if len(value) > longest:
        raise fail(field, f"has {len(value)} bytes, at most {longest} are allowed")
    return value


def text(field: str, value: str, *, longest: int = MAX_NAME) -> str:
    """A text that is not too long. The text itself is not repeated: it may be a prompt."""
    if len(value) > longest:
        raise fail(field, f"has {len(value)} characters, at most {longest} are allowed")
    return value


def session_id(value: str, field: str = "session_id") -> str:
    """An id that can stand in a key, a metadata value and a log line."""
    limits.check_session_id(value, field)
    return value


def epoch(value: int, field: str = "epoch") -> int:
    """An owner's number. Lua compares numbers as doubles, which are exact up to 2**53."""
    return at_most(field, value, 2**53, least=1)


def token_ids(
    field: str, values: Collection[int], *, vocab_size: int = 0, most: int = MAX_TOKENS, least: int = 0
) -> tuple[int, ...]:
    """Token ids below `vocab_size` (0: any that fit 31 bits)."""
    if not least <= len(values) <= most:
        raise fail(field, f"has {len(values)} token ids, {least} to {most} are allowed")
    ids = tuple(values)
    bound = vocab_size or limits.MAX_TOKEN_ID + 1
    if ids and max(ids) >= bound:
        position = next(index for index, value in enumerate(ids) if value >= bound)
        raise fail(field, f"has token id {ids[position]} at {position}, ids must be below {bound}")
    return ids
