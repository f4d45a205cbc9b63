"""Exponential back-off with jitter."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from `first_s` to `most_s`, each shortened at random by up to a half.

    The jitter keeps many from knocking at once when what they wait for is back.
    """

    def __init__(self, first_s: float, most_s: float, rng: random.Random | None = None) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s
        self._rng = rng or random.Random()

    def next_s(self) -> float:
        """The delay before the next attempt, in seconds."""
        delay = self._next_s
        self._next_s = min(2 * delay, self._most_s)
        return delay * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It worked: start over."""
        self._next_s = self._first_s
