"""How long a proposal of one drafter is worth waiting for. Pure: the caller brings the clock."""

from __future__ import annotations

_SMOOTHING = 0.2  # weight of the newest latency
_FACTOR = 4.0  # patience is this many times the usual latency ...
_FLOOR_S = 0.020  # ... but at least this: below it, the scheduler's own jitter would cause misses
_MAX_REST_FACTOR = 32.0  # rests double up to this many times the first one


class Patience:
    """The patience with one drafter: follows its latency, and rests it when it misses too often.

    While it rests, nobody waits for it. Afterwards the next round probes it: one more miss
    doubles the rest, a proposal in time ends it.
    """

    def __init__(self, *, limit_s: float, max_misses: int, rest_s: float) -> None:
        """Args:
        limit_s: longest wait ever, in seconds.
        max_misses: missed steps in a row that rest the drafter.
        rest_s: the first rest, in seconds.
        """
        self._limit_s = limit_s
        self._max_misses = max_misses
        self._first_rest_s = rest_s
        self._rest_s = rest_s
        self._usual_s: float | None = None
        self._misses = 0
        self._rests_until: float | None = None

    def wait_s(self, now: float) -> float:
        """How long to wait for a proposal asked for now, in seconds. 0: do not ask."""
        if self.resting(now):
            return 0.0
        if self._usual_s is None:
            return self._limit_s
        return min(self._limit_s, max(_FLOOR_S, _FACTOR * self._usual_s))

    @property
    def usual_s(self) -> float | None:
        """The usual latency, in seconds; None: nothing is known yet."""
        return self._usual_s

    def resting(self, now: float) -> bool:
        """Whether the drafter rests."""
        return self._rests_until is not None and now < self._rests_until

    @property
    def doubted(self) -> bool:
        """Whether the drafter has rested, and no proposal came in time since."""
        return self._rests_until is not None

    def observe(self, latency_s: float) -> None:
        """A proposal came after `latency_s`, in time or not: late ones make patience grow."""
        if self._usual_s is None:
            self._usual_s = latency_s
        else:
            self._usual_s += _SMOOTHING * (latency_s - self._usual_s)

    def hit(self) -> bool:
        """A proposal came in time. True if that ended the time after a rest."""
        rested = self._rests_until is not None
        self._misses = 0
        self._rest_s = self._first_rest_s
        self._rests_until = None
        return rested

    def miss(self, now: float) -> None:
        """A step went on without any of the proposals that it had waited for."""
        # Nothing tells how late it would have been; without growing, a drafter that became slower
        # for good would be missed for ever.
        if self._usual_s is not None:
            self._usual_s = min(2 * max(self._usual_s, _FLOOR_S / _FACTOR), self._limit_s)
        if self.resting(now):
            return  # it was asked before the rest began: that is no probe
        self._misses += 1
        probing = self._rests_until is not None
        if probing or self._misses >= self._max_misses:
            self._rests_until = now + self._rest_s
            self._rest_s = min(2 * self._rest_s, _MAX_REST_FACTOR * self._first_rest_s)
            self._misses = 0

    def reset(self) -> None:
        """A new process, perhaps on another machine: nothing is known of it."""
        self._usual_s = None
        self._misses = 0
        self._rest_s = self._first_rest_s
        self._rests_until = None
