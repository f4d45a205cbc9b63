"""Who may come in: the places of one verifier, shared fairly between tenants. Event loop only.

The engine thread owns the queue itself (`fair_queue`). Here is what the event loop has to know of it to
answer an arrival at once: who is here, whose it is, and whether it has had its turn.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from outrider.core.errors import OverloadedError
from outrider.telemetry import names
from outrider.verifying.departures import Departures

ARRIVING_S = 0.1
"""Whose time is over before the engine thread knows of it is looked at again after this."""


class _State(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    EVICTED = enum.auto()  # told to go; counts no more, unless it has just had its turn


@dataclass(slots=True)
class _Place:
    tenant: str
    returns: bool
    state: _State = _State.WAITING
    timer: asyncio.TimerHandle | None = None  # ends its wait

    def end_wait(self, state: _State) -> None:
        """It waits no more."""
        self.state = state
        if self.timer is not None:
            self.timer.cancel()


class Places:
    """The sessions that run, wait or arrive here.

    While no place is free, an arrival of a tenant with fewer waiting sessions takes the place of the
    youngest waiting one of the tenant with the most. A session that ran before, here or elsewhere, is
    never put out: its client has tokens of it.
    """

    def __init__(
        self,
        *,
        max_sessions: int,
        max_queue: int,
        admitted: Callable[[str], bool],
        evict: Callable[[str, OverloadedError], None],
        refused: Callable[[str], None],
        timeout_s: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Args:
        max_sessions: how many run at once.
        max_queue: how many wait besides.
        admitted: whether the engine thread has been told of a session; others cannot be put out.
        evict: end a session with this error, unless it has had its turn meanwhile.
        refused: told of each session that finds no place: one of names.REFUSED_*.
        timeout_s: how long one that did not run before may wait; None: as long as it takes.
        clock: seconds, for the hint when to try again.
        """
        self.total = max_sessions + max_queue
        self._admitted = admitted
        self._evict = evict
        self._refused = refused
        self._timeout_s = timeout_s
        self._clock = clock
        self._places: dict[str, _Place] = {}  # oldest first
        self._departures = Departures()

    @property
    def running(self) -> int:
        """Sessions that have had their turn; one that was preempted is among them."""
        return self._count(_State.RUNNING)

    @property
    def waiting(self) -> int:
        """Sessions that have not had their turn."""
        return self._count(_State.WAITING)

    def take(self, session_id: str, tenant: str, *, returns: bool = False) -> None:
        """A place for an arrival. `returns`: it ran elsewhere before.

        Raises:
            OverloadedError: there is none; says when to try again.
        """
        if self.waiting + self.running >= self.total and not self._make_place(tenant, returns):
            self._refused(names.REFUSED_FULL)
            raise OverloadedError(
                f"{self.total} sessions run or wait here already", retry_after_s=self.retry_after_s
            )
        self._departures.busy(self._clock())
        self._places[session_id] = place = _Place(tenant, returns)
        if self._timeout_s is not None and not returns:
            place.timer = asyncio.get_running_loop().call_later(self._timeout_s, self._overdue, session_id)

    def started(self, session_id: str) -> None:
        """The session has its turn."""
        place = self._places.get(session_id)
        if place is not None:
            place.end_wait(_State.RUNNING)

    def give_back(self, session_id: str) -> None:
        """The session is over, or did not come in. Idempotent."""
        place = self._places.pop(session_id, None)
        if place is None:
            return
        place.end_wait(place.state)
        if place.state is _State.RUNNING:
            self._departures.add(self._clock())
        if not self._places:
            self._departures.idle()

    @property
    def retry_after_s(self) -> float:
        """When those that wait now will have had their turn."""
        return self._departures.retry_after_s(self._clock(), self.waiting)

    def _make_place(self, tenant: str, returns: bool) -> bool:
        """Put out whoever has to give way to an arrival; False if nobody has to."""
        waiting: Counter[str] = Counter()
        living: Counter[str] = Counter()
        youngest: dict[str, str] = {}  # by tenant: the session that would go
        for session_id, place in self._places.items():
            if place.state is _State.EVICTED:
                continue
            living[place.tenant] += 1
            if place.state is _State.WAITING:
                waiting[place.tenant] += 1
                if not place.returns and self._admitted(session_id):
                    youngest[place.tenant] = session_id
        if not youngest:
            return False
        heaviest = max(youngest, key=lambda one: (waiting[one], living[one]))
        more_wait = waiting[heaviest] - waiting[tenant]
        more_live = living[heaviest] - living[tenant]
        # By one more only they would merely change roles, and the next arrival would change them back.
        if not returns and not (more_wait > 1 or (more_wait == 1 and more_live > 1)):
            return False
        why = "others have fewer sessions waiting here, and no place is left"
        self._put_out(youngest[heaviest], why, names.REFUSED_PUT_OUT)
        return True

    def _overdue(self, session_id: str) -> None:
        if not self._admitted(session_id):
            again = asyncio.get_running_loop().call_later(ARRIVING_S, self._overdue, session_id)
            self._places[session_id].timer = again
            return
        self._put_out(session_id, f"it has waited {self._timeout_s:g} s for its turn", names.REFUSED_TIMEOUT)

    def _put_out(self, session_id: str, why: str, reason: str) -> None:
        """Should it have its turn at this very moment, it stays."""
        self._places[session_id].end_wait(_State.EVICTED)
        self._refused(reason)
        self._evict(session_id, OverloadedError(why, retry_after_s=self.retry_after_s))

    def _count(self, state: _State) -> int:
        return sum(place.state is state for place in self._places.values())
