"""A commit writer with a real store behind it, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from outrider.core.errors import StaleEpochError
from outrider.sessions.redis import RedisStore
from outrider.sessions.writer import CommitWriter
from tests.integration.sessions.records import commit, record

PATIENCE_S = 60.0


@dataclass
class Watcher:
    """Records what the writer tells."""

    errors: list[str] = field(default_factory=list)
    fenced: list[str] = field(default_factory=list)
    lost: int = 0
    most_pending: int = 0
    batches: list[int] = field(default_factory=list)
    states: list[bool] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def pending(self, commits: int) -> None:
        self.most_pending = max(self.most_pending, commits)

    def degraded(self, degraded: bool) -> None:
        self.states.append(degraded)
        self.changed.set()

    def error(self, reason: str) -> None:
        self.errors.append(reason)
        self.changed.set()

    def dropped(self, commits: int) -> None:
        self.lost += commits

    def written(self, commits: int, seconds: float) -> None:
        self.batches.append(commits)

    def on_fenced(self, session_id: str, error: StaleEpochError) -> None:
        self.fenced.append(session_id)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Live:
    """Sessions that run in a verifier, whose memory is the truth: every step adds one token to each."""

    def __init__(self, names: Sequence[str]) -> None:
        self.sessions = {name: record(name) for name in names}

    def begin(self, writer: CommitWriter) -> None:
        for session in self.sessions.values():
            writer.create(session)

    def step(self, writer: CommitWriter) -> None:
        commits = []
        for name, held in self.sessions.items():
            length = len(held.tokens)
            self.sessions[name] = record(name, tokens=(*held.tokens, length))
            commits.append(commit(length, length, session_id=name))
        writer.put(commits)


@asynccontextmanager
async def writing(
    url: str, *, timeout_s: float = 10.0, max_pending: int = 10_000, **options: Any
) -> AsyncIterator[tuple[CommitWriter, RedisStore, Watcher]]:
    watcher = Watcher()
    store = RedisStore(url, timeout_s=timeout_s)
    writer = CommitWriter(
        store, max_pending=max_pending, on_fenced=watcher.on_fenced, observer=watcher, **options
    )
    writer.start()
    try:
        yield writer, store, watcher
    finally:
        await writer.close(0.0)
        await store.close()
