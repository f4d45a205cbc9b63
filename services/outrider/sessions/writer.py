"""Writes a verifier's commits to the store behind its back: in order, batched, bounded, retried.

The stream to the client does not wait for the store. Commits may trail it safely, since whoever takes a
session over computes the same tokens again. Where that is not so (the rules "token" and "block"), the stream
waits for `on_stored`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from outrider.core.errors import OutriderError, StaleEpochError, StoreUnavailableError, describe
from outrider.core.sessions import Commit, FinishReason, SessionRecord
from outrider.sessions.pending import Create, PendingWrites, Queue, Restore, Truncate, Write
from outrider.sessions.performing import perform
from outrider.sessions.store import SessionStore

BATCH_SESSIONS = 512
"""Sessions in one append: bounds the time of one round trip after the store was away."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
PING_S = 2.0
"""A store that nothing is written to is asked this often whether it is there."""

Fenced = Callable[[str, StaleEpochError], None]
Snapshot = Callable[[str], SessionRecord | None]
Stored = Callable[[str, int], None]


class WriterObserver(Protocol):
    """What the writer tells about itself; telemetry's StoreMetrics is one."""

    def pending(self, commits: int) -> None:
        """So many writes wait."""

    def degraded(self, degraded: bool) -> None:
        """Whether writes are delayed or were lost."""

    def error(self, reason: str) -> None:
        """A write failed: an error's label."""

    def dropped(self, commits: int) -> None:
        """So many writes were given up."""

    def written(self, commits: int, seconds: float) -> None:
        """A batch was stored."""


class CommitWriter:
    """Takes writes from the event loop at once; one task brings them to the store.

    Args:
        store: where to.
        max_pending: most writes that wait. When there are more, the oldest session's are given up.
        on_fenced: somebody else owns the session; its writes were dropped. The owner must stop it.
            Called again if it goes on.
        on_stored: told, for each write, how many generated tokens of the session the store has now.
        snapshot: the whole current record of a session that still runs here, or None. With it a
            session that the store lost, or whose writes were given up, is written anew.
        observer: hooks for metrics.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        max_pending: int,
        on_fenced: Fenced,
        on_stored: Stored | None = None,
        snapshot: Snapshot | None = None,
        observer: WriterObserver | None = None,
    ) -> None:
        self._store = store
        self._pending = PendingWrites(max_pending)
        self._on_fenced = on_fenced
        self._on_stored = on_stored
        self._snapshot = snapshot
        self._observer = observer
        self._failing = False
        self._failure = ""
        self._pause_s = FIRST_PAUSE_S
        self._mended: set[str] = set()  # being written anew
        self._wake, self._idle, self._hurry = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._progress = asyncio.Event()  # set, and replaced, whenever something changed
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write. From within the event loop."""
        self._task = asyncio.create_task(self._run(), name="commit-writer")

    @property
    def degraded(self) -> bool:
        """The store is behind what clients have seen, and not just by a moment."""
        dead = self._task is not None and self._task.done()
        return self._failing or dead or self._pending.any_lost

    @property
    def troubles(self) -> tuple[str, ...]:
        """What does not work as it should, in words for an operator; empty: all is well."""
        troubles = []
        if self._task is not None and self._task.done():
            troubles.append("session store: a defect ended the writing of commits")
        elif self._failing:
            waiting = f"; writes that wait for it: {len(self._pending)}" if self._pending else ""
            troubles.append(f"{self._failure}{waiting}")
        if self._pending.any_lost:
            troubles.append(
                "session store behind: writes of some sessions were given up, they cannot be taken over"
            )
        return tuple(troubles)

    @property
    def pending(self) -> int:
        """Writes that wait."""
        return len(self._pending)

    def create(self, record: SessionRecord) -> None:
        """Store a session that was admitted while the store was away, as soon as it is back."""
        self._add(Create(record))

    def restore(self, record: SessionRecord) -> None:
        """As SessionStore.restore, as soon as the store is back."""
        self._add(Restore(record))

    def put(self, commits: Sequence[Commit]) -> None:
        """Take the commits of one step."""
        for commit in commits:
            self._add(commit)

    def truncate(self, session_id: str, epoch: int, length: int, reason: FinishReason) -> None:
        """As SessionStore.truncate, after the session's commits that wait."""
        self._add(Truncate(session_id, epoch, length, reason))

    def forget(self, session_id: str) -> None:
        """Drop what waits for a session."""
        self._pending.forget(session_id)
        self._mended.discard(session_id)
        self._report()

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written. False if it was not within `timeout_s`."""
        self._hurry.set()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def settle(self, session_id: str, timeout_s: float) -> bool:
        """Wait until all of one session is written. False: it was not within `timeout_s`, or was given up."""
        self._hurry.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._pending.awaits(session_id):
                    await self._progress.wait()
        return not self._pending.awaits(session_id)

    async def close(self, timeout_s: float) -> bool:
        """Flush and stop. False if writes were left behind."""
        flushed = await self.flush(timeout_s)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        return flushed

    @property
    def _behind(self) -> bool:
        """Whether anything is still to be written: what waits, and what was given up but can be mended."""
        return bool(self._pending) or (self._snapshot is not None and bool(self._pending.mendable))

    def _add(self, write: Write) -> None:
        given_up = self._pending.add(write)
        if given_up and self._observer:
            self._observer.dropped(given_up)
        self._report()
        self._wake.set()

    def _report(self) -> None:
        if self._behind:
            self._idle.clear()
        else:
            self._idle.set()
        self._progress.set()
        self._progress = asyncio.Event()
        if self._observer:
            self._observer.pending(len(self._pending))
            self._observer.degraded(self.degraded)

    async def _run(self) -> None:
        while True:
            probe = False
            try:
                async with asyncio.timeout(PING_S):
                    await self._wake.wait()
            except TimeoutError:
                probe = True  # nothing was written for a while: is the store still there?
            self._wake.clear()
            while probe or self._behind or self._failing:
                probe = False
                try:
                    await self._write_batch()
                except OutriderError as error:
                    self._failed(error)
                    await self._pause()
                else:
                    self._succeeded()
                self._report()

    async def _write_batch(self) -> None:
        """Write what can be written now, in one go. Raises the error of a store that is away."""
        if not self._pending:
            await self._store.ping()  # nothing waits, or all of it was given up: is the store there?
            return
        batch = self._pending.batch(BATCH_SESSIONS)
        began = time.monotonic()
        results = await perform(self._store, [write for _, write, _ in batch])
        away: list[tuple[Queue, StoreUnavailableError]] = []
        stored = 0
        for (queue, write, count), result in zip(batch, results, strict=True):
            if isinstance(result, StoreUnavailableError):
                away.append((queue, result))
                continue
            stored += count
            self._settle(queue, count, result)
            if result is None:
                self._stored(write)
        if stored and self._observer:
            self._observer.written(stored, time.monotonic() - began)
        for queue, _ in away if stored else ():
            self._pending.postpone(queue)
        if away:
            raise away[0][1]

    def _settle(self, queue: Queue, count: int, result: Exception | None) -> None:
        """What the store said of the first `count` writes of a session."""
        if result is None:
            self._pending.done(queue, count)
            self._mended.discard(queue.session_id)
            return
        if self._observer:
            self._observer.error(describe(result).label)
        if not self._pending.holds(queue):
            return  # the session may have come back with another epoch; its next write will tell
        if isinstance(result, StaleEpochError):
            self._pending.forget(queue.session_id)
            self._mended.discard(queue.session_id)
            self._on_fenced(queue.session_id, result)
            return
        # The store lost some of the session, or all of it, or there is a conflict: writing the
        # whole session anew mends all but the last. What fails again is given up.
        mendable = queue.session_id not in self._mended
        self._mended.discard(queue.session_id)
        given_up = self._pending.lose(queue.session_id, mendable=mendable)
        if self._observer:
            self._observer.dropped(given_up)

    def _stored(self, write: Write) -> None:
        if self._on_stored is None:
            return
        if isinstance(write, Commit):
            self._on_stored(write.session_id, write.base_len + len(write.token_ids))
        elif isinstance(write, Create | Restore):
            self._on_stored(write.session_id, len(write.record.tokens))

    def _failed(self, error: OutriderError) -> None:
        self._failing = True
        self._failure = str(error)
        if self._observer:
            self._observer.error(describe(error).label)

    def _succeeded(self) -> None:
        self._failing = False
        self._pause_s = FIRST_PAUSE_S
        self._mend()

    def _mend(self) -> None:
        """Write sessions anew whose writes were given up."""
        if self._snapshot is None:
            return
        for session_id in self._pending.mendable:
            record = self._snapshot(session_id)
            self._pending.forget(session_id)
            if record is not None:
                self._mended.add(session_id)
                self._pending.add(Restore(record))

    async def _pause(self) -> None:
        """Longer each time; jitter, so that verifiers do not come back all at once."""
        self._report()
        delay = self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), delay)
        self._hurry.clear()
