"""From wishes to numbers of replicas: bounds, and delays before anything comes or goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outrider.scaling.observation import Wish
from outrider.scaling.settings import PoolScaling


@dataclass(frozen=True, slots=True)
class Hold:
    """Since when a pool has wanted more or fewer."""

    up_since: float | None = None
    down_since: float | None = None
    peaks: tuple[tuple[float, int], ...] = ()  # when, and how many: wishes that no later one has reached


def needed(amount: float, each: float, current: int, slack: float) -> int:
    """Replicas for `amount`, of which each is to have `each`.

    More only if `current` are not enough, fewer only if these then stay `slack` below `each`: so a number
    that was reached stays while the amount does.
    """
    enough = _ceil(amount / each)
    if enough > current:
        return enough
    return min(current, _ceil(amount / (each * (1 - slack))))


def steady(
    wish: Wish, target: int, lowest: int, highest: int, settings: PoolScaling, hold: Hold, now: float
) -> tuple[int, Hold]:
    """The number of replicas from now on, and what to remember.

    Args:
        wish: what is wanted.
        target: replicas so far.
        lowest, highest: bounds; they are kept without delay.
        settings: the delays.
        hold: as the last call has left it.
        now: seconds.
    """
    count = min(max(wish.count, lowest), highest)
    bounded = min(max(target, lowest), highest)
    if count == bounded or bounded != target:
        return bounded, Hold()
    if wish.at_once or (count > target and target == 0):
        return count, Hold()
    if count > target:
        since = hold.up_since if hold.up_since is not None else now
        return (count, Hold()) if now - since >= settings.up_delay_s else (target, Hold(up_since=since))
    return _fewer(count, target, settings.down_delay_s, hold, now)


def _fewer(count: int, target: int, delay_s: float, hold: Hold, now: float) -> tuple[int, Hold]:
    """Down to the most that were wanted within the delay."""
    since = hold.down_since if hold.down_since is not None else now
    peaks = (*(one for one in hold.peaks if one[1] > count and now - one[0] < delay_s), (now, count))
    hold = Hold(down_since=since, peaks=peaks)
    return (min(target, peaks[0][1]), hold) if now - since >= delay_s else (target, hold)


def _ceil(ratio: float) -> int:
    """Up, but not for the last bits of a division."""
    return math.ceil(ratio - 1e-9)
