"""Bounds of how much is told, and how often."""

from __future__ import annotations

from outrider.core.errors import InvalidRequestError
from outrider.core.limits.values import integer
from outrider.core.params import LogprobParams

MAX_LOGPROBS = 20
"""Most alternatives at a position, OpenAI's bound."""
MAX_COMPLETIONS = 128
"""Most completions of one prompt, OpenAI's bound."""


def check_logprobs(params: LogprobParams) -> None:
    """Bounds of how many alternatives are told."""
    if params.top is not None:
        integer("logprobs", params.top, 0, MAX_LOGPROBS)
    if params.prompt_top is not None:
        integer("prompt_logprobs", params.prompt_top, 0, MAX_LOGPROBS)


def check_completions(n: int, best_of: int | None = None) -> None:
    """Bounds of n and best_of (None: as many as n)."""
    integer("n", n, 1, MAX_COMPLETIONS)
    if best_of is None:
        return
    integer("best_of", best_of, 1, MAX_COMPLETIONS)
    if best_of < n:
        raise InvalidRequestError(f"best_of must be at least n ({n}), got {best_of}", field="best_of")
