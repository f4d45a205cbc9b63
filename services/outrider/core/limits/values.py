"""Checks of single values, and how a client's value stands in a message."""

from __future__ import annotations

import reprlib
from collections.abc import Collection

from outrider.core.errors import InvalidRequestError

MAX_QUOTED_CHARS = 128
"""Most of a client's value that a message repeats."""
MAX_TOKEN_ID = 2**31 - 1
"""Ids are packed as int32 in the store and held as int64 by torch."""

_QUOTER = reprlib.Repr()
_QUOTER.maxstring = _QUOTER.maxlong = _QUOTER.maxother = MAX_QUOTED_CHARS


def quoted(value: object) -> str:
    """A client's value for a message, its middle left out where it is long."""
    return _QUOTER.repr(value)


def number(field: str, value: float, low: float, high: float) -> float:
    """A number in a range."""
    # NaN fails every comparison, so the test is for what is allowed, never for what is not.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidRequestError(
            f"{field} must be a number from {low:g} to {high:g}, got {quoted(value)}", field=field
        )
    return value + 0.0  # -0.0 is 0


def fraction(field: str, value: float) -> None:
    """A share above 0 and at most 1."""
    if number(field, value, 0.0, 1.0) == 0.0:
        raise InvalidRequestError(f"{field} must be above 0 and at most 1, got 0", field=field)


def integer(field: str, value: int, low: int, high: int) -> None:
    """An integer in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequestError(
            f"{field} must be an integer from {low} to {high}, got {quoted(value)}", field=field
        )


def count(field: str, values: Collection[object], most: int) -> None:
    """A collection that is not too large."""
    if len(values) > most:
        raise InvalidRequestError(f"{field} must hold at most {most} entries, got {len(values)}", field=field)


def encodable(field: str, text: str) -> None:
    """A text without lone surrogates, which JSON can hold but UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{field} holds half of a surrogate pair", field=field) from None


def token_ids(field: str, values: Collection[int], *, vocab_size: int | None) -> None:
    """Token ids of the vocabulary (None or 0: any that fit 31 bits)."""
    highest = vocab_size - 1 if vocab_size else MAX_TOKEN_ID
    for token_id in values:
        integer(field, token_id, 0, highest)
