"""Bounds of how a token is drawn."""

from __future__ import annotations

from outrider.core.errors import InvalidRequestError
from outrider.core.limits.edits import check_edits
from outrider.core.limits.values import fraction, integer, number, quoted
from outrider.core.params import SamplingParams

MIN_TEMPERATURE = 1e-3
"""Smallest temperature above 0; below it a request means greedy and should say 0."""
MAX_TEMPERATURE = 100.0
MAX_TOP_K = 2**31 - 1
MAX_SEED = 2**64 - 1


def check_sampling(params: SamplingParams, *, vocab_size: int | None = None) -> None:
    """Bounds of every field, edits included; ids are checked against `vocab_size` if it is given."""
    temperature = number("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    if 0.0 < temperature < MIN_TEMPERATURE:
        raise InvalidRequestError(
            f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, got {quoted(temperature)}",
            field="temperature",
        )
    integer("top_k", params.top_k, 0, MAX_TOP_K)
    fraction("top_p", params.top_p)
    number("min_p", params.min_p, 0.0, 1.0)
    fraction("typical_p", params.typical_p)
    integer("seed", params.seed, 0, MAX_SEED)
    check_edits(params.edits, vocab_size=vocab_size)
