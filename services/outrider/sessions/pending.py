"""Writes that wait for the store: in order for each session, bounded in all."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from outrider.core.sessions import Commit, FinishReason, SessionRecord

MAX_TOKENS = 2**24
"""Of all that waits, prompts included: 64 MiB in the store's form, some times that in this process."""


@dataclass(frozen=True, slots=True)
class Create:
    """Store a new session."""

    record: SessionRecord

    @property
    def session_id(self) -> str:
        """Of the record."""
        return self.record.session_id


@dataclass(frozen=True, slots=True)
class Restore:
    """Store a session that the store has lost, or has less of, or has with an older epoch."""

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


Write = Create | Restore | Commit | Truncate


@dataclass(slots=True, eq=False)
class Queue:
    """What waits for one session."""

    session_id: str
    writes: deque[Write] = field(default_factory=deque)


class PendingWrites:
    """At most `limit` writes, of at most `max_tokens` tokens.

    When there are more, the oldest session's are given up as a whole: half of them would leave a
    gap that the store refuses. Such a session is lost: its further writes are ignored until it
    ends or is taken up again.
    """

    def __init__(self, limit: int, *, max_tokens: int = MAX_TOKENS) -> None:
        self._limit = limit
        self._max_tokens = max_tokens
        self._queues: OrderedDict[str, Queue] = OrderedDict()
        self._lost: OrderedDict[str, bool] = OrderedDict()  # True: can be taken up again
        self._size = 0
        self._tokens = 0

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
        self._tokens += _tokens(write)
        given_up = 0
        while self._size > self._limit or (self._tokens > self._max_tokens and self._size > 1):
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
        self._tokens -= sum(map(_tokens, queue.writes))
        return len(queue.writes)

    def holds(self, queue: Queue) -> bool:
        """Whether `queue` still waits: it may have been given up while its write was under way."""
        return self._queues.get(queue.session_id) is queue

    def awaits(self, session_id: str) -> bool:
        """Whether something of a session is still to be written, or was given up."""
        return session_id in self._queues or session_id in self._lost

    def batch(self, sessions: int) -> list[tuple[Queue, Write, int]]:
        """What the first `sessions` sessions have to write next: all that can go as one.

        With each: of which queue, and how many writes `done` must take off once it is stored.
        """
        return [(queue, *_merged(queue.writes)) for queue in islice(self._queues.values(), sessions)]

    def postpone(self, queue: Queue) -> None:
        """Let the other sessions go first: this one's part of the store is away."""
        if self.holds(queue):
            self._queues.move_to_end(queue.session_id)

    def done(self, queue: Queue, count: int) -> None:
        """Take the first `count` writes off, unless they were given up in the meantime."""
        if not self.holds(queue):
            return
        for _ in range(count):
            self._tokens -= _tokens(queue.writes.popleft())
        self._size -= count
        if not queue.writes:
            del self._queues[queue.session_id]


def _ends(write: Write) -> bool:
    if isinstance(write, Create | Restore):
        return write.record.finish_reason is not None
    return isinstance(write, Truncate) or write.finish_reason is not None


def _tokens(write: Write) -> int:
    if isinstance(write, Create | Restore):
        return len(write.record.prompt) + len(write.record.tokens)
    return len(write.token_ids) if isinstance(write, Commit) else 0


def _merged(writes: Iterable[Write]) -> tuple[Write, int]:
    """The first write with the commits that follow on from it, and how many writes that are."""
    first, *rest = writes
    if isinstance(first, Truncate):
        return first, 1
    begin = first if isinstance(first, Commit) else first.record
    tokens = list(begin.token_ids if isinstance(begin, Commit) else begin.tokens)
    base = begin.base_len if isinstance(begin, Commit) else 0
    last, count = begin, 1
    for commit in rest:
        if not isinstance(commit, Commit) or last.finish_reason is not None or commit.epoch != begin.epoch:
            break
        if commit.base_len != base + len(tokens):
            break
        tokens.extend(commit.token_ids)
        last, count = commit, count + 1
    reason, stop, ids = last.finish_reason, last.stop_token_id, tuple(tokens)
    if isinstance(first, Commit):
        return replace(first, token_ids=ids, finish_reason=reason, stop_token_id=stop), count
    record = replace(first.record, tokens=ids, finish_reason=reason, stop_token_id=stop)
    return replace(first, record=record), count
