"""Leases in memory: the rules of the registry without Redis (`lua/*.lua` are the same rules).

All times are this process's own, so the clocks of machines do not matter.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

KEPT_LEASES = 10
"""How many leases long the entry of one that died is kept, so that its number is not given again."""


@dataclass(frozen=True, slots=True)
class _Entry:
    ends: float  # seconds of the clock
    number: int  # higher for the younger of two instances at one address
    instance_id: str
    body: str


class Leases:
    """Who is alive. Not safe for threads."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        """`clock`: seconds, never going back; `wall`: seconds, alike in the process that takes our place."""
        self._clock = clock
        self._wall = wall
        self._since = uuid.uuid4().hex  # another value means that what was known before is forgotten
        self._written = clock()
        self._entries: dict[str, _Entry] = {}

    def enter(self, field: str, lease_s: float, instance_id: str, number: str, body: str) -> tuple[bool, str]:
        """Enter an instance, or renew its lease.

        Args:
            field: its place.
            lease_s: how long it may not be heard of.
            instance_id: who it is.
            number: what the last call returned; empty: this is its first.
            body: for readers.

        Returns:
            True and its number, or False and the younger instance that lives at its place.
        """
        now = self._clock()
        held = self._entries.get(field)
        if not number:
            self._sweep(now - KEPT_LEASES * lease_s)
            mine = max(round(1000 * self._wall()), 0 if held is None else held.number + 1)
        else:
            mine = int(number)
            if (
                held is not None
                and held.instance_id != instance_id
                and held.number > mine
                and held.ends > now
            ):
                return False, held.instance_id
        self._entries[field] = _Entry(now + lease_s, mine, instance_id, body)
        self._written = now
        return True, str(mine)

    def withdraw(self, field: str, instance_id: str) -> None:
        """Take an instance out, unless another one has taken its place."""
        held = self._entries.get(field)
        if held is not None and held.instance_id == instance_id:
            del self._entries[field]
            self._written = self._clock()

    def read(self) -> tuple[str, bool, list[str]]:
        """Since when it is kept; whether it seems that nobody could renew; the bodies of those who live.

        A lease is over when its end has passed and somebody has written since. If nobody has, it is rather
        that this process could not be written to.
        """
        now = self._clock()
        over = min(now, self._written)
        running = [entry for entry in self._entries.values() if entry.ends > over]
        stalled = bool(running) and all(entry.ends <= now for entry in running)
        return self._since, stalled, [entry.body for entry in running]

    def _sweep(self, before: float) -> None:
        self._entries = {field: entry for field, entry in self._entries.items() if entry.ends >= before}
