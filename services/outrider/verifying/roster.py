"""Who runs and who waits, and who gives way when the KV pool is full."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

from outrider.engine.api import EngineApi, SequenceHandle
from outrider.verifying.fair_queue import FairQueue
from outrider.verifying.scheduler import may_start
from outrider.verifying.session import Session


def _age(session: Session) -> int:
    return session.age


class Roster:
    """Waiting sessions, in an order that is fair between tenants, and running ones, oldest first.

    A session's age counts from its first turn. When the pool is full, the youngest running session is
    preempted: its KV is released and it waits again, first in its tenant's line, to be recomputed. It
    keeps its age and pays nothing more. The oldest one can take the whole pool, in which each session
    fits alone, so it always advances: no deadlock. Nobody overtakes whoever comes next, and between
    tenants nobody gets far ahead (`fair_queue`): no starvation.
    """

    def __init__(
        self, engine: EngineApi, *, max_sessions: int, block_size: int, preempted: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._max_sessions = max_sessions
        self._block_size = block_size
        self._sessions: dict[str, Session] = {}
        self.running: list[Session] = []
        self.waiting: FairQueue[Session] = FairQueue()
        self._ages = 0
        self._preempted = preempted

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, session_id: str) -> Session | None:
        """The session with this id, if it lives here."""
        return self._sessions.get(session_id)

    def add(self, session: Session) -> None:
        """A session that waits for its turn."""
        self._sessions[session.session_id] = session
        self.waiting.add(session)

    def remove(self, session: Session) -> None:
        """The session is over: all its KV goes back to the pool, and what it did not need is paid back."""
        del self._sessions[session.session_id]
        if session.sequence is None:
            self.waiting.remove(session)
        else:
            self.running.remove(session)
            self._engine.release(session.sequence)
            session.sequence = None
        if session.age:
            self.waiting.pay_back(session.tenant, session.remaining)
        if not self._sessions:
            self.waiting.forget()

    def start_waiting(self) -> list[Session]:
        """Let waiting sessions run, in turn, while there is room; returns those that start.

        Raises:
            OutriderError: the engine refuses one; it still waits, first in line.
        """
        started = []
        while (session := self.waiting.first) is not None and self._may_start(session):
            session.sequence = self._engine.open(
                session.tokens, reuse=session.reusable, salt=session.record.cache_salt
            )
            session.cached_prompt_tokens = max(
                session.cached_prompt_tokens, self._cached(session.sequence, session)
            )
            self.waiting.start(session)
            if not session.age:
                self._ages += 1
                session.age = self._ages
            bisect.insort(self.running, session, key=_age)
            started.append(session)
        return started

    def make_room(self, session: Session, tokens: int, drafted: int) -> int | None:
        """Reserve KV for `tokens` tokens and, if they fit without preempting, `drafted` more.

        Returns the draft tokens that have room (all or none), or None if the session itself had
        to give way.
        """
        assert session.sequence is not None
        if drafted and self._engine.reserve(session.sequence, tokens + drafted):
            return drafted
        while not self._engine.reserve(session.sequence, tokens):
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is session:
                return None
        return 0

    def _preempt(self, session: Session) -> None:
        assert session.sequence is not None
        self._engine.release(session.sequence)
        session.sequence = None
        session.drafting.forget_round()
        self.running.remove(session)
        self.waiting.add(session)
        self._preempted()

    def _may_start(self, session: Session) -> bool:
        pool = self._engine.pool
        promised = sum(self._blocks(other.missing) for other in self.running)
        needed = self._blocks(len(session.tokens) + 1)
        return may_start(needed, pool.total - pool.used - promised, len(self.running), self._max_sessions)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    @staticmethod
    def _cached(sequence: SequenceHandle, session: Session) -> int:
        return min(sequence.cached_len, len(session.record.prompt))
