"""Which drafters are worth asking: learned from accepted tokens a second. Pure: no clock, no chance.

An accepted path of a merged tree stands in one of the proposals as a whole, so a set of drafters gets the
most that any of its members gets. Every round in which all of a set were asked is a sample for that set. A
round costs the target's step and the wait for the slowest drafter of the set; the set with the most tokens a
second is asked. The empty set is one of them: speculation that does not pay stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

_SMOOTHING = 0.08  # weight of the newest round in what a session knows of a set
_SHARED_SMOOTHING = 0.02
_FIRST_GUESS = 1.0  # accepted tokens a round of a set that nobody ever asked
_TRIALS = 3  # first rounds of a session that ask all
_FIRST_PAUSE, _LONGEST_PAUSE = 12, 96  # rounds between two trials of all
_LONGEST_TRIAL = (
    4  # rounds; one that can be asked but never is (it fails whenever it is opened) holds up no more
)
_MANY = 6  # of more drafters than this, sets of two are the largest that are looked at: sets double with each
_GAIN = 1.02  # a set must promise so much more than a smaller one


class SharedWorth:
    """What all sessions of a verifier have learned together."""

    def __init__(self) -> None:
        self.accepted: dict[frozenset[str], float] = {}
        self._rounds: dict[frozenset[str], int] = {}

    def learn(self, sample: Mapping[str, int]) -> None:
        """One round's accepted tokens of each drafter that was asked."""
        for drafters, most in _subsets(sample):
            count = self._rounds[drafters] = self._rounds.get(drafters, 0) + 1
            before = self.accepted.get(drafters, 0.0)
            # A plain mean at first: else the very first round would count for a hundred.
            self.accepted[drafters] = before + max(_SHARED_SMOOTHING, 1 / count) * (most - before)

    def best(self, waits: Mapping[str, float], step_s: float) -> str:
        """The one drafter with the most tokens a second; of equals the first one. Empty: there is none."""
        rates = {
            name: (1 + self.accepted.get(frozenset((name,)), _FIRST_GUESS)) / (step_s + wait)
            for name, wait in waits.items()
        }
        return max(rates, key=rates.__getitem__, default="")


class Worth:
    """What one session has learned of its drafters."""

    def __init__(self, shared: SharedWorth) -> None:
        self._shared = shared
        self._accepted: dict[frozenset[str], float] = {}
        self._rounds = 0
        self._pause = _FIRST_PAUSE
        self._next_trial = _TRIALS - 1
        self._tried = 0  # rounds of the present trial

    def choose(self, waits: Mapping[str, float], step_s: float) -> frozenset[str]:
        """Whom to ask in the next round.

        Args:
            waits: of each drafter that can be asked, its usual time to a proposal in seconds.
            step_s: time of a step of the target, in seconds.
        """
        everybody = frozenset(waits)
        if self._rounds < _TRIALS or self._rounds >= self._next_trial:
            return everybody
        best, rate = frozenset[str](), 1 / step_s
        for drafters in _all_subsets(sorted(waits)):
            wait = max(waits[name] for name in drafters)
            promised = (1 + self._expected(drafters)) / (step_s + wait)
            if promised > rate * _GAIN:
                best, rate = drafters, promised
        return best

    def learn(self, sample: Mapping[str, int], *, everybody: bool) -> None:
        """A round is over.

        Args:
            sample: accepted tokens of each drafter that was asked, 0 if it did not answer.
            everybody: all that could be asked were.
        """
        self._rounds += 1
        if self._rounds > self._next_trial:
            self._tried += 1
            if (sample and everybody) or self._tried >= _LONGEST_TRIAL:
                self._tried = 0
                self._next_trial = self._rounds + self._pause
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if not sample:
            return
        self._shared.learn(sample)
        for drafters, most in _subsets(sample):
            before = self._accepted.get(drafters, self._shared.accepted[drafters])
            self._accepted[drafters] = before + _SMOOTHING * (most - before)

    def _expected(self, drafters: frozenset[str]) -> float:
        own = self._accepted.get(drafters)
        if own is not None:
            return own
        known = self._shared.accepted.get(drafters)
        if known is not None:
            return known
        # Never asked together: at least what the best of them gets alone.
        singles = [self._accepted.get(one, self._shared.accepted.get(one)) for one in map(_single, drafters)]
        return max((value for value in singles if value is not None), default=_FIRST_GUESS)


def _single(name: str) -> frozenset[str]:
    return frozenset((name,))


def _all_subsets(names: Sequence[str]) -> Iterable[frozenset[str]]:
    """Smaller ones first, so that of equals the smaller one wins."""
    largest = len(names) if len(names) <= _MANY else 2
    for size in range(1, largest + 1):
        yield from map(frozenset, combinations(names, size))


def _subsets(sample: Mapping[str, int]) -> Iterable[tuple[frozenset[str], int]]:
    for drafters in _all_subsets(sorted(sample)):
        yield drafters, max(sample[name] for name in drafters)
