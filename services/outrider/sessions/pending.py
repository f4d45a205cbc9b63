"""Writes that wait for the store: in order for each session, bounded in all."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from outrider.core.sessions import Commit, FinishReason, SessionRecord


@dataclass(frozen=True, slots=True)
class Create:
    """Store a new session."""

    record: SessionRecord

    @property
    def session_id(self) -> str:
        """Of the record."""
        return self.record.session_id


@dataclass(frozen=True, slots=True)
class Truncate:
    """Keep the first `length` generated tokens and finish the session."""

    session_id: str
    epoch: int
    length: int
    reason: FinishReason


Write = Create | Commit | Truncate


@dataclass(slots=True, eq=False)
class Queue:
    """What waits for one session."""

    session_id: str
    writes: deque[Write] = field(default_factory=deque)


class PendingWrites:
    """At most `limit` writes.

    When there are more, the oldest session's are given up as a whole: half of them would leave a
    gap that the store refuses. Such a session is lost: its further writes are ignored until it
    ends or is taken up again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: OrderedDict[str, Queue] = OrderedDict()
        self._lost: OrderedDict[str, bool] = OrderedDict()  # True: can be taken up again
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def any_lost(self) -> bool:
        """Whether writes of a session that goes on were given up."""
        return bool(self._lost)

    @property
    def mendable(self) -> tuple[str, ...]:
        """Sessions whose writes were given up, but which may be written anew."""
        return tuple(session_id for session_id, mendable in self._lost.items() if mendable)

    def add(self, write: Write) -> int:
        """Returns how many writes were given up for it."""
        session_id = write.session_id
        if session_id in self._lost:
            if _ends(write):
                del self._lost[session_id]
            return 1
        queue = self._queues.setdefault(session_id, Queue(session_id))
        queue.writes.append(write)
        self._size += 1
        given_up = 0
        while self._size > self._limit:
            given_up += self.lose(next(iter(self._queues)))
        return given_up

    def lose(self, session_id: str, *, mendable: bool = True) -> int:
        """Give up what waits for a session. Returns how much that was."""
        queue = self._queues.get(session_id)
        ended = queue is not None and any(map(_ends, queue.writes))
        given_up = self.forget(session_id)
        if not ended:
            self._lost[session_id] = mendable
            # Sessions that never end here must not pile up.
            if len(self._lost) > self._limit:
                self._lost.popitem(last=False)
        return given_up

    def forget(self, session_id: str) -> int:
        """Drop what waits for a session and take later writes as usual. Returns how much was dropped."""
        self._lost.pop(session_id, None)
        queue = self._queues.pop(session_id, None)
        if queue is None:
            return 0
        self._size -= len(queue.writes)
        return len(queue.writes)

    def holds(self, queue: Queue) -> bool:
        """Whether `queue` still waits: it may have been given up while its write was under way."""
        return self._queues.get(queue.session_id) is queue

    def awaits(self, session_id: str) -> bool:
        """Whether something of a session is still to be written, or was given up."""
        return session_id in self._queues or session_id in self._lost

    def heads(self, kind: type[Create] | type[Truncate]) -> list[Queue]:
        """Queues whose first write is of this kind."""
        return [queue for queue in self._queues.values() if isinstance(queue.writes[0], kind)]

    def commits(self, sessions: int) -> list[tuple[Queue, Commit, int]]:
        """For the first `sessions` sessions whose turn is a commit: all that can go as one.

        With each: of which queue, and how many writes `done` must take off once it is stored.
        """
        ready = (queue for queue in self._queues.values() if isinstance(queue.writes[0], Commit))
        return [(queue, *_merged(queue.writes)) for queue in islice(ready, sessions)]

    def done(self, queue: Queue, count: int) -> None:
        """Take the first `count` writes off, unless they were given up in the meantime."""
        if not self.holds(queue):
            return
        for _ in range(count):
            queue.writes.popleft()
        self._size -= count
        if not queue.writes:
            del self._queues[queue.session_id]


def _ends(write: Write) -> bool:
    return isinstance(write, Truncate) or (isinstance(write, Commit) and write.finish_reason is not None)


def _merged(writes: Iterable[Write]) -> tuple[Commit, int]:
    """The first commit with those that follow on from it, and how many that are."""
    commits = _leading_commits(writes)
    merged, count = next(commits), 1
    tokens = list(merged.token_ids)
    for commit in commits:
        if commit.epoch != merged.epoch or commit.base_len != merged.base_len + len(tokens):
            break
        if merged.finish_reason is not None:
            break
        tokens.extend(commit.token_ids)
        merged = replace(merged, finish_reason=commit.finish_reason)
        count += 1
    return replace(merged, token_ids=tuple(tokens)), count


def _leading_commits(writes: Iterable[Write]) -> Iterator[Commit]:
    for write in writes:
        if not isinstance(write, Commit):
            return
        yield write
