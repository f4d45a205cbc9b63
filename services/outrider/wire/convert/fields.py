"""Checks of single fields. Each one names the field, what was wrong and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from outrider.core.errors import InvalidRequestError, ProtocolError

MAX_TOKEN_ID = 2**31 - 1
"""Ids are packed as int32 in the store and held as int64 by torch."""
MAX_TOKENS = 2**20
"""Tokens in one message."""
MAX_SESSION_ID = 128
"""Characters in a session id."""
MAX_NAME = 256
"""Characters in a name, a method or an instance id."""
MAX_TRACEPARENT = 128
"""Characters in a W3C trace context."""
MAX_DRAFT_TOKENS = 4096
"""Draft tokens in one proposal, in any deployment."""
MAX_TEXT = 4 * 2**20
"""Characters in one text."""


@contextmanager
def from_peer(where: str) -> Iterator[None]:
    """What is a wrong request when a client says it is a broken protocol when a service does."""
    try:
        yield
    except InvalidRequestError as error:
        raise ProtocolError(f"{where}: {error}") from error


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


def text(field: str, value: str, *, longest: int = MAX_NAME) -> str:
    """A text that is not too long. The text itself is not repeated: it may be a prompt."""
    if len(value) > longest:
        raise fail(field, f"has {len(value)} characters, at most {longest} are allowed")
    return value


def session_id(value: str, field: str = "session_id") -> str:
    """An id that can stand in a Redis key, in a metadata value and in a log line.

    Braces would move the hash tag of the session's keys to another Cluster slot.
    """
    if not 0 < len(value) <= MAX_SESSION_ID:
        raise fail(field, f"has {len(value)} characters, 1 to {MAX_SESSION_ID} are allowed")
    if not value.isascii() or not value.isprintable() or any(sign in value for sign in "{} "):
        raise fail(field, "may hold printable ASCII characters other than braces and blanks only")
    return value


def epoch(value: int, field: str = "epoch") -> int:
    """An owner's number. Lua compares numbers as doubles, which are exact up to 2**53."""
    return at_most(field, value, 2**53, least=1)


def token_ids(
    field: str, values: Iterable[int], *, vocab_size: int = 0, most: int = MAX_TOKENS, least: int = 0
) -> tuple[int, ...]:
    """Token ids below `vocab_size` (0: any that fit 31 bits)."""
    ids = tuple(values)
    if not least <= len(ids) <= most:
        raise fail(field, f"has {len(ids)} token ids, {least} to {most} are allowed")
    bound = vocab_size or MAX_TOKEN_ID + 1
    if ids and max(ids) >= bound:
        position = next(index for index, value in enumerate(ids) if value >= bound)
        raise fail(field, f"has token id {ids[position]} at {position}, ids must be below {bound}")
    return ids
