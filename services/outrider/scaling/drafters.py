"""How many drafters of a kind: by the sessions that they hold, their queue, and proposals that come late."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.scaling.counting import DrafterTotals
from outrider.scaling.observation import Why, Wish
from outrider.scaling.settings import DrafterScaling
from outrider.scaling.steady import needed

MOST_DOUBLINGS = 6
"""Of the time for which a ceiling is believed: about ten hours by default."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Sessions with which a replica was late: what it can do is less than its configuration says."""

    sessions: float  # of a replica, with which it should be in time
    until: float  # then more are tried again
    times: int = 1  # how often it was found; each time it is believed for longer

    def holds(self, now: float) -> bool:
        """Whether it is still believed."""
        return now < self.until


@dataclass(frozen=True, slots=True)
class DrafterLoad:
    """Averages of the last seconds, of all drafters of a kind together."""

    sessions: float = 0.0
    queued: float = 0.0  # sessions that wait for a proposal
    capacity: float = 0.0  # sessions that one replica can hold; 0: not known
    reporting: int = 0
    silent: int = 0


@dataclass(frozen=True, slots=True)
class Lateness:
    """Rounds since the number of replicas changed last."""

    asked: float = 0.0
    missed: float = 0.0
    sessions: float = 0.0  # of a replica, on average

    @property
    def share(self) -> float:
        """Of rounds that went on without what they had asked for."""
        return min(1.0, self.missed / self.asked) if self.asked else 0.0


def load_of(totals: DrafterTotals, seconds: float, *, reporting: int, silent: int = 0) -> DrafterLoad:
    """The averages of `seconds`."""
    return DrafterLoad(
        sessions=totals.sessions_s / (seconds or 1.0),
        queued=totals.queued_s / (seconds or 1.0),
        capacity=totals.capacity_s / (totals.replica_s or 1.0),
        reporting=reporting,
        silent=silent,
    )


def lateness_of(totals: DrafterTotals) -> Lateness:
    """Of a stretch of time in which the number of replicas did not change."""
    return Lateness(totals.asked, totals.missed, totals.sessions_s / (totals.replica_s or 1.0))


def learn(settings: DrafterScaling, ceiling: Ceiling | None, late: Lateness, now: float) -> Ceiling | None:
    """What a replica can do in time, after what was seen.

    A replica that is late with a single session is slow, not overloaded: more of them would not help.
    """
    if late.asked < settings.min_asked:
        return ceiling
    if late.share > settings.max_late and late.sessions > 1:
        sessions = max(1.0, late.sessions * max(0.5, settings.max_late / late.share))
        if ceiling is not None and ceiling.holds(now) and ceiling.sessions <= sessions:
            return ceiling
        times = 1 if ceiling is None else ceiling.times + (not ceiling.holds(now))
        return Ceiling(sessions, now + settings.forget_s * 2 ** min(times - 1, MOST_DOUBLINGS), times)
    if ceiling is not None and late.share <= settings.max_late / 2 and late.sessions > ceiling.sessions:
        return Ceiling(late.sessions, ceiling.until, ceiling.times)
    return ceiling


def each_holds(settings: DrafterScaling, load: DrafterLoad, ceiling: Ceiling | None, now: float) -> float:
    """Sessions that a replica is to have; 0: not known."""
    each = settings.target_sessions or settings.target_use * load.capacity
    if ceiling is not None and ceiling.holds(now):
        return min(each or ceiling.sessions, ceiling.sessions)
    return each


def wanted_drafters(
    settings: DrafterScaling, load: DrafterLoad, each: float, late: Lateness, current: int
) -> Wish:
    """How many there should be instead of `current`, by load alone, before bounds and delays.

    Args:
        settings: of the kind.
        load: averages of the last seconds.
        each: sessions that a replica is to have (`each_holds`).
        late: since the number of replicas changed last.
        current: replicas that are asked for.
    """
    if not each:
        return Wish(max(1, current), Why.NO_DATA, "no drafter has reported yet")
    by_sessions = needed(load.sessions, each, current, settings.slack)
    # More replicas than sessions would have nothing to do.
    by_queue = min(
        needed(load.queued, settings.target_queued, current, settings.slack), _ceiled(load.sessions, current)
    )
    hurried = late.asked >= settings.min_asked and late.share > settings.max_late and late.sessions > 1
    if by_queue > by_sessions:
        text = f"{load.queued:.1f} sessions wait for proposals; {settings.target_queued:g} a drafter"
        wish = Wish(by_queue, Why.QUEUE, text)
    else:
        text = f"{load.sessions:.1f} sessions; {each:.1f} a drafter"
        if hurried:
            text += f"; {100 * late.share:.0f}% of proposals late with {late.sessions:.1f} each"
        wish = Wish(max(1, by_sessions), Why.LATE if hurried else Why.SESSIONS, text)
    if wish.count < current and hurried:
        return Wish(current, Why.LATE, f"{100 * late.share:.0f}% of proposals late; {wish.reason}")
    if load.silent and wish.count < current:
        return Wish(current, Why.SILENT, f"{load.silent} drafters have not reported yet; {wish.reason}")
    return wish


def _ceiled(sessions: float, current: int) -> int:
    return max(1, needed(sessions, 1.0, current, 0.0))
