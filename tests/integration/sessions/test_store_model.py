"""Redis and memory, driven by the same random calls, never differ."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis.asyncio import Redis

from outrider.core.errors import OutriderError
from outrider.core.sessions import Commit, FinishReason
from outrider.sessions.memory import MemoryStore
from outrider.sessions.redis import RedisStore
from outrider.sessions.store import SessionStore
from tests.integration.sessions.records import RECORD, record
from tests.servers import RedisServer

NAMES = st.sampled_from(["a", "b"])
EPOCHS = st.integers(1, 3)
REASONS = st.sampled_from(FinishReason)
# Few different tokens, so that overlaps are often the same and often not.
TOKENS = st.lists(st.integers(0, 1), max_size=3).map(tuple)
COMMITS = st.builds(
    Commit,
    session_id=NAMES,
    epoch=EPOCHS,
    base_len=st.integers(0, 5),
    token_ids=TOKENS,
    finish_reason=st.one_of(st.none(), REASONS),
)


class Twins(RuleBasedStateMachine):
    """Both stores, side by side."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.memory = MemoryStore()
        self.redis = RedisStore(self.url, timeout_s=30.0)
        self.run(self.wipe())

    async def wipe(self) -> None:
        client = Redis.from_url(self.url, protocol=2)
        await client.flushdb()
        await client.aclose()

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def both(self, call: Callable[[SessionStore], Awaitable[Any]]) -> None:
        assert self.outcome(call(self.memory)) == self.outcome(call(self.redis))

    def outcome(self, work: Awaitable[Any]) -> object:
        """A result or an error, in a form that can be compared."""
        try:
            result = self.run(work)
        except OutriderError as error:
            return type(error), str(error)
        if isinstance(result, list):
            return [(type(item), str(item)) for item in result]
        return result

    @rule(name=NAMES, tokens=TOKENS)
    def create(self, name: str, tokens: tuple[int, ...]) -> None:
        self.both(lambda store: store.create(record(name, tokens=tokens)))

    @rule(
        name=NAMES,
        tokens=TOKENS,
        epoch=EPOCHS,
        reason=st.one_of(st.none(), REASONS),
        prompt=st.sampled_from([RECORD.prompt] * 4 + [(9,)]),
    )
    def restore(
        self,
        name: str,
        tokens: tuple[int, ...],
        epoch: int,
        reason: FinishReason | None,
        prompt: tuple[int, ...],
    ) -> None:
        wanted = record(name, tokens=tokens, epoch=epoch, finish_reason=reason, prompt=prompt)
        self.both(lambda store: store.restore(wanted))

    @rule(name=NAMES)
    def claim(self, name: str) -> None:
        self.both(lambda store: store.claim(name))

    @rule(commits=st.lists(COMMITS, max_size=4))
    def append(self, commits: list[Commit]) -> None:
        self.both(lambda store: store.append(commits))

    @rule(name=NAMES, epoch=EPOCHS, length=st.integers(0, 5), reason=REASONS)
    def truncate(self, name: str, epoch: int, length: int, reason: FinishReason) -> None:
        self.both(lambda store: store.truncate(name, epoch, length, reason))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.both(lambda store: store.delete(name))

    @invariant()
    def same_content(self) -> None:
        for name in ("a", "b"):
            self.both(lambda store, name=name: store.load(name))

    def teardown(self) -> None:
        self.run(self.redis.close())
        self.loop.close()


# A loop of its own for each run, and the runner may not be inside one: so this test is not async.
@pytest.mark.timeout(300)
def test_redis_and_memory_never_differ(shared_server: RedisServer) -> None:
    machine = type("Machine", (Twins,), {"url": shared_server.url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
