"""Both stores behind one face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from outrider.sessions.memory import MemoryStore
from outrider.sessions.redis import RedisStore
from outrider.sessions.scripts import keys_of
from outrider.sessions.store import SessionStore
from tests.servers import RedisServer, redis_server

TTL_S = 100


@dataclass(frozen=True)
class Bench:
    """A store, and what tests do to its clock."""

    store: SessionStore
    pass_time: Callable[[str, float], Awaitable[None]]  # session, seconds


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    """One server for tests that leave it alone."""
    with redis_server() as server:
        yield server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of this test's own, to be killed and frozen."""
    with redis_server() as server:
        yield server


@pytest.fixture
async def admin(shared_server: RedisServer) -> AsyncIterator[Redis]:
    """A plain client that looks at the shared server from outside."""
    client = Redis.from_url(shared_server.url, protocol=2)
    yield client
    await client.aclose()


@pytest.fixture
async def redis_store(shared_server: RedisServer, admin: Redis) -> AsyncIterator[RedisStore]:
    """An empty store."""
    await admin.flushall()
    store = RedisStore(shared_server.url, ttl_s=TTL_S, timeout_s=10.0)
    yield store
    await store.close()


@pytest.fixture(params=["memory", "redis"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Each store in turn. Time passes at once: by its clock, or by a shorter time to live."""
    if request.param == "memory":
        now = 0.0

        async def tick(_: str, seconds: float) -> None:
            nonlocal now
            now += seconds

        return Bench(MemoryStore(ttl_s=TTL_S, clock=lambda: now), tick)
    client: Redis = request.getfixturevalue("admin")

    async def shorten(session_id: str, seconds: float) -> None:
        for key in keys_of(session_id):
            left = await client.pttl(key)
            if left > 0:
                await client.pexpire(key, left - int(seconds * 1000))

    return Bench(request.getfixturevalue("redis_store"), shorten)
