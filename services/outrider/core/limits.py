"""The bounds of every request parameter, in one place. Standard library only.

Each check raises InvalidRequestError with the field's name, what was given and what is allowed.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Collection, Sequence

from outrider.core.errors import InvalidRequestError, PromptTooLongError
from outrider.core.params import SamplingParams, SpeculationParams, StopParams

MIN_TEMPERATURE = 1e-3
"""Smallest temperature above 0; below it a request means greedy and should say 0."""
MAX_TEMPERATURE = 100.0
MAX_TOP_K = 2**31 - 1
MAX_SEED = 2**64 - 1
MAX_STOP_TOKEN_IDS = 256
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_DRAFT_TOKENS = 1024
MAX_DRAFTER_NAME_CHARS = 128
MAX_SESSION_ID_CHARS = 128

MAX_QUOTED_CHARS = 128
"""Most of a client's value that a message repeats."""

_SESSION_ID = re.compile(r"[A-Za-z0-9._:-]+")
_QUOTER = reprlib.Repr()
_QUOTER.maxstring = _QUOTER.maxlong = _QUOTER.maxother = MAX_QUOTED_CHARS


def quoted(value: object) -> str:
    """A client's value for a message, its middle left out where it is long."""
    return _QUOTER.repr(value)


def check_sampling(params: SamplingParams) -> None:
    """Bounds of temperature, top_k, top_p, min_p and seed."""
    temperature = _number("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    if 0.0 < temperature < MIN_TEMPERATURE:
        raise InvalidRequestError(
            f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, got {quoted(temperature)}",
            field="temperature",
        )
    _integer("top_k", params.top_k, 0, MAX_TOP_K)
    if _number("top_p", params.top_p, 0.0, 1.0) == 0.0:
        raise InvalidRequestError("top_p must be above 0 and at most 1, got 0", field="top_p")
    _number("min_p", params.min_p, 0.0, 1.0)
    _integer("seed", params.seed, 0, MAX_SEED)


def check_stop(stop: StopParams, *, vocab_size: int | None = None) -> None:
    """Bounds of max_tokens and stop_token_ids; ids are checked against `vocab_size` if it is given."""
    _integer("max_tokens", stop.max_tokens, 1, 2**31 - 1)
    _count("stop_token_ids", stop.stop_token_ids, MAX_STOP_TOKEN_IDS)
    highest = 2**31 - 1 if vocab_size is None else vocab_size - 1
    for token_id in stop.stop_token_ids:
        _integer("stop_token_ids", token_id, 0, highest)


def check_stop_strings(stop: Sequence[str]) -> None:
    """Bounds of the stop strings: how many, and how long each."""
    _count("stop", stop, MAX_STOP_STRINGS)
    for text in stop:
        if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
            raise InvalidRequestError(
                f"stop must hold strings of 1 to {MAX_STOP_STRING_CHARS} characters, got one of {len(text)}",
                field="stop",
            )


def check_speculation(speculation: SpeculationParams) -> None:
    """Bounds of max_draft_tokens and of the drafter's name."""
    if speculation.max_draft_tokens is not None:
        _integer("max_draft_tokens", speculation.max_draft_tokens, 0, MAX_DRAFT_TOKENS)
    if len(speculation.drafter) > MAX_DRAFTER_NAME_CHARS:
        raise InvalidRequestError(
            f"drafter must be a name of at most {MAX_DRAFTER_NAME_CHARS} characters, "
            f"got {len(speculation.drafter)}",
            field="drafter",
        )


def check_prompt(token_ids: Sequence[int], *, vocab_size: int, context_length: int) -> None:
    """A prompt is not empty, of known ids, and leaves room for at least one token.

    A `vocab_size` or `context_length` of 0 means unbounded, as in ModelInfo.

    Raises:
        PromptTooLongError: the prompt alone fills the context.
    """
    if not token_ids:
        raise InvalidRequestError("prompt must hold at least one token, got none", field="prompt")
    if context_length and len(token_ids) >= context_length:
        raise PromptTooLongError(
            f"prompt must hold at most {context_length - 1} tokens (the model's context of {context_length} "
            f"less one to generate), got {len(token_ids)}",
            field="prompt",
        )
    highest = vocab_size - 1 if vocab_size else 2**31 - 1
    for token_id in (min(token_ids), max(token_ids)):
        _integer("prompt", token_id, 0, highest)


def check_length(prompt_tokens: int, max_tokens: int, *, context_length: int) -> None:
    """Prompt and `max_tokens` together fit the context (0: unbounded).

    Raises:
        PromptTooLongError: they do not.
    """
    if context_length and prompt_tokens + max_tokens > context_length:
        raise PromptTooLongError(
            f"max_tokens must be at most {context_length - prompt_tokens} after a prompt of {prompt_tokens} "
            f"tokens (the model's context is {context_length}), got {quoted(max_tokens)}",
            field="max_tokens",
        )


def check_session_id(session_id: str) -> None:
    """A session id is short and safe to be part of a key, a log line and a header."""
    if len(session_id) > MAX_SESSION_ID_CHARS or not _SESSION_ID.fullmatch(session_id):
        raise InvalidRequestError(
            f"session_id must be 1 to {MAX_SESSION_ID_CHARS} characters out of A-Z a-z 0-9 . _ : -",
            field="session_id",
        )


def _number(field: str, value: float, low: float, high: float) -> float:
    # NaN fails every comparison, so the test is for what is allowed, never for what is not.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidRequestError(
            f"{field} must be a number from {low:g} to {high:g}, got {quoted(value)}", field=field
        )
    return math.fabs(value)


def _integer(field: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequestError(
            f"{field} must be an integer from {low} to {high}, got {quoted(value)}", field=field
        )


def _count(field: str, values: Collection[object], most: int) -> None:
    if len(values) > most:
        raise InvalidRequestError(f"{field} must hold at most {most} entries, got {len(values)}", field=field)
