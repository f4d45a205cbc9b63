"""Bounds of when a generation ends."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.errors import InvalidRequestError
from outrider.core.limits.values import count, integer, token_ids
from outrider.core.params import StopParams

MAX_STOP_TOKEN_IDS = 256
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024


def check_stop(stop: StopParams, *, vocab_size: int | None = None) -> None:
    """Bounds of max_tokens and stop_token_ids; ids are checked against `vocab_size` if it is given."""
    integer("max_tokens", stop.max_tokens, 1, 2**31 - 1)
    count("stop_token_ids", stop.stop_token_ids, MAX_STOP_TOKEN_IDS)
    token_ids("stop_token_ids", stop.stop_token_ids, vocab_size=vocab_size)


def check_stop_strings(stop: Sequence[str]) -> None:
    """Bounds of the stop strings: how many, and how long each."""
    count("stop", stop, MAX_STOP_STRINGS)
    for text in stop:
        if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
            raise InvalidRequestError(
                f"stop must hold strings of 1 to {MAX_STOP_STRING_CHARS} characters, got one of {len(text)}",
                field="stop",
            )
