"""A bucket of tokens: a rate that allows bursts."""

from __future__ import annotations

import time
from collections.abc import Callable

MINUTE_S = 60.0
_ROUNDING = 1e-6


class Bucket:
    """Holds what may be used in a period, is filled at a steady rate, and may be overdrawn.

    More than it holds can be taken when it is full: whoever does so then waits until it is paid back. So
    one large request is never impossible, and over time the rate is kept all the same.
    """

    __slots__ = ("_at", "_clock", "_level", "_period_s", "_size")

    def __init__(
        self, size: int, *, period_s: float = MINUTE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`size` is what it holds, and what flows in within `period_s`. `clock`: seconds, never back."""
        self._size = size
        self._period_s = period_s
        self._clock = clock
        self._level = float(size)
        self._at = clock()

    @property
    def level(self) -> float:
        """What is there now; below 0: overdrawn."""
        self._fill()
        return self._level

    def resize(self, size: int) -> None:
        """Another rate from now on. What is missing stays missing."""
        if size != self._size:
            self._fill()
            self._level += size - self._size
            self._size = size

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` can be taken; 0: now."""
        self._fill()
        missing = min(amount, self._size) - self._level
        return missing * self._period_s / self._size if missing > _ROUNDING else 0.0

    def take(self, amount: float) -> None:
        """Take it, be it there or not."""
        self._fill()
        self._level -= amount

    def try_take(self, amount: float) -> bool:
        """Take it if it is there; False: it is not."""
        if self.wait_s(amount) > 0:
            return False
        self._level -= amount
        return True

    def give_back(self, amount: float) -> None:
        """What was taken and not used."""
        self._fill()
        self._level = min(self._level + amount, float(self._size))

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._level + (now - self._at) * self._size / self._period_s, float(self._size))
        self._at = now
