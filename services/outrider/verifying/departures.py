"""How fast places become free, for the hint when to try again. The caller brings the clock (seconds)."""

from __future__ import annotations

from collections import deque

LEAST_S, USUAL_S, MOST_S = 0.1, 1.0, 60.0
"""Bounds of the hint, and the hint of a server that is too young to know."""
WINDOW_S = 60.0
"""What was longer ago says nothing about now."""
MOST = 1024
"""Departures that are remembered."""


class Departures:
    """The sessions that ended lately."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST)
        self._busy_since: float | None = None

    def busy(self, now: float) -> None:
        """Somebody is here."""
        if self._busy_since is None:
            self._busy_since = now

    def idle(self) -> None:
        """Nobody is here any more."""
        self._busy_since = None
        self._times.clear()

    def add(self, now: float) -> None:
        """One has ended that had its turn."""
        self._times.append(now)

    def retry_after_s(self, now: float, waiting: int) -> float:
        """When those that wait, so many, will have had their turn at the present pace."""
        while self._times and self._times[0] < now - WINDOW_S:
            self._times.popleft()
        span = 0.0 if self._busy_since is None else min(now - self._busy_since, WINDOW_S)
        if not self._times:  # the longer nobody ends, the longer it may take
            return min(max(span, USUAL_S), MOST_S)
        if len(self._times) == MOST:
            span = now - self._times[0]
        return min(max(waiting * span / len(self._times), LEAST_S), MOST_S)
