"""Who may come in: the places of one verifier, shared fairly between tenants. Event loop only.

The engine thread owns the queue itself (`fair_queue`). Here is what the event loop has to know of it to
answer an arrival at once: who is here, whose it is, and whether it has had its turn.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from outrider.core.errors import OverloadedError

LEAST_RETRY_S, USUAL_RETRY_S, MOST_RETRY_S = 0.1, 1.0, 60.0
"""Bounds of the hint when to try again, and the hint while nobody has finished yet."""
DEPARTURES = 64
"""How many of the last departures tell how fast places become free."""


class _State(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    EVICTED = enum.auto()  # told to go; counts no more, unless it has just had its turn


@dataclass(slots=True)
class _Place:
    tenant: str
    returns: bool
    state: _State = _State.WAITING


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
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Args:
        max_sessions: how many run at once.
        max_queue: how many wait besides.
        admitted: whether the engine thread has been told of a session; others cannot be put out.
        evict: end a session with this error, unless it has had its turn meanwhile.
        clock: seconds, for the hint when to try again.
        """
        self.total = max_sessions + max_queue
        self._admitted = admitted
        self._evict = evict
        self._clock = clock
        self._places: dict[str, _Place] = {}  # oldest first
        self._departures: deque[float] = deque(maxlen=DEPARTURES)

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
            raise OverloadedError(
                f"{self.total} sessions run or wait here already", retry_after_s=self.retry_after_s
            )
        self._places[session_id] = _Place(tenant, returns)

    def started(self, session_id: str) -> None:
        """The session has its turn."""
        place = self._places.get(session_id)
        if place is not None:
            place.state = _State.RUNNING

    def put_out(self, session_id: str, error: OverloadedError) -> None:
        """End a session that waits; one that has had its turn stays."""
        place = self._places.get(session_id)
        if place is not None and place.state is _State.WAITING:
            place.state = _State.EVICTED
            self._evict(session_id, error)

    def give_back(self, session_id: str) -> None:
        """The session is over, or did not come in. Idempotent."""
        place = self._places.pop(session_id, None)
        if place is not None and place.state is _State.RUNNING:
            self._departures.append(self._clock())

    @property
    def retry_after_s(self) -> float:
        """When the queue, as long as it is, will have had its turn at the pace of the last departures."""
        if not self._departures:
            return USUAL_RETRY_S
        pace = (self._clock() - self._departures[0]) / len(self._departures)
        return min(max(self.waiting * pace, LEAST_RETRY_S), MOST_RETRY_S)

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
        error = OverloadedError(
            "others have fewer sessions waiting here, and there is no place left",
            retry_after_s=self.retry_after_s,
        )
        self.put_out(youngest[heaviest], error)
        return True

    def _count(self, state: _State) -> int:
        return sum(place.state is state for place in self._places.values())
