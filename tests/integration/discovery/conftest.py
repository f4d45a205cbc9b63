"""A Redis of each test's own, and registries on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from outrider.config import OutriderConfig
from outrider.config.schema import RegistryConfig, StoreConfig
from outrider.discovery import (
    Announcer,
    Instance,
    LeaseAnnouncer,
    LeaseRegistry,
    Role,
    open_announcer,
    open_registry,
)
from tests.servers import RedisServer, redis_server

TIMEOUT_S = 60.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """To be killed and frozen."""
    with redis_server() as server:
        yield server


@pytest.fixture
def config(server: RedisServer) -> OutriderConfig:
    """Short leases."""
    return OutriderConfig(
        registry=RegistryConfig(kind="redis", url=server.url, lease_s=0.6, heartbeat_s=0.1),
        store=StoreConfig(timeout_s=0.2),
    )


@pytest.fixture
async def registry(config: OutriderConfig) -> AsyncIterator[LeaseRegistry]:
    """For who looks."""
    registry = open_registry(config, Role.DRAFTER)
    assert isinstance(registry, LeaseRegistry)
    yield registry
    await registry.close()


@pytest.fixture
async def announcer(config: OutriderConfig) -> AsyncIterator[Callable[[], LeaseAnnouncer]]:
    """Makes announcers; they are closed at the end."""
    made: list[Announcer] = []

    def make() -> LeaseAnnouncer:
        one = open_announcer(config)
        assert isinstance(one, LeaseAnnouncer)
        made.append(one)
        return one

    yield make
    await asyncio.gather(*(one.close() for one in made))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def die(announcer: LeaseAnnouncer) -> None:
    """As a process that is killed: it renews no more, and withdraws nothing."""
    assert announcer._keeper is not None
    announcer._keeper.cancel()
    await asyncio.gather(announcer._keeper, return_exceptions=True)
    announcer._instance = None


async def listed_are(registry: LeaseRegistry, *expected: Instance) -> bool:
    """Whether these drafters are listed, and no others."""
    return await registry.list(Role.DRAFTER) == expected
