"""What holds of every registry, wherever its leases are written down: in Redis, or in a Serve application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from outrider.core.errors import UnavailableError
from outrider.discovery import Instance, LeaseAnnouncer, LeaseRegistry, Load, Role
from outrider.discovery.ledger import Ledger
from outrider.discovery.ray_ledger import RayLedger
from outrider.discovery.redis_ledger import RedisLedger
from outrider.rayserve.registry import RegistryReplica
from tests.integration.discovery.conftest import die, listed_are, until
from tests.servers import RedisServer

A = Instance(Role.DRAFTER, "127.0.0.1:1", "draft", "a1", metrics="127.0.0.1:11")
B = Instance(Role.DRAFTER, "127.0.0.1:2", "draft", "b1")
C = Instance(Role.DRAFTER, "127.0.0.1:2", "lookup", "c1")
V = Instance(Role.VERIFIER, "[::1]:9100", "", "v1")
LEASE_S, HEARTBEAT_S, TIMEOUT_S = 0.6, 0.1, 0.2

Make = Callable[[], LeaseAnnouncer]
Ledgers = Callable[[], Ledger]


class Handle:
    """As Serve's handle of the deployment, without Serve in between; its replica can be replaced."""

    def __init__(self) -> None:
        self.replica: RegistryReplica | None = RegistryReplica()

    def __getattr__(self, method: str) -> Any:
        return _Method(self, method)


class _Method:
    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name

    async def remote(self, *arguments: object) -> object:
        if self._handle.replica is None:
            raise OSError("no replica is there")
        return await getattr(self._handle.replica, self._name)(*arguments)


@pytest.fixture
def handle() -> Handle:
    """Of the deployment `registry`."""
    return Handle()


@pytest.fixture(params=["redis", "serve"])
def ledgers(request: pytest.FixtureRequest, handle: Handle) -> Ledgers:
    """Opens the ledger once more."""
    if request.param == "serve":
        return lambda: RayLedger(lambda: handle, address="serve", timeout_s=TIMEOUT_S)
    server: RedisServer = request.getfixturevalue("server")
    return lambda: RedisLedger(server.url, namespace="n", timeout_s=TIMEOUT_S, setting="registry.url")


@pytest.fixture
async def registry(ledgers: Ledgers) -> AsyncIterator[LeaseRegistry]:
    """For who looks."""
    registry = LeaseRegistry(ledgers(), lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S)
    yield registry
    await registry.close()


@pytest.fixture
async def announcer(ledgers: Ledgers) -> AsyncIterator[Make]:
    """Makes announcers; they are closed at the end."""
    made: list[LeaseAnnouncer] = []

    def make() -> LeaseAnnouncer:
        made.append(LeaseAnnouncer(ledgers(), lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S))
        return made[-1]

    yield make
    await asyncio.gather(*(one.close() for one in made))


async def test_who_entered_is_listed_by_role_and_name(registry: LeaseRegistry, announcer: Make) -> None:
    assert await registry.list(Role.DRAFTER) == ()
    for one in (C, V, B, A):
        await announcer().start(one)
    assert await registry.list(Role.DRAFTER) == (A, B, C)
    assert await registry.list(Role.DRAFTER, "draft") == (A, B)
    assert await registry.list(Role.DRAFTER, "nobody") == ()
    assert await registry.list(Role.VERIFIER) == (V,)
    assert registry.troubles == ()


async def test_who_withdraws_is_gone_at_once(registry: LeaseRegistry, announcer: Make) -> None:
    first, second = announcer(), announcer()
    await first.start(A)
    await second.start(B)
    await first.close()
    assert await registry.list(Role.DRAFTER) == (B,)
    await first.close()


async def test_a_live_one_stays_for_many_leases(registry: LeaseRegistry, announcer: Make) -> None:
    one, dead = announcer(), announcer()
    await one.start(A)
    for _ in range(3):
        await dead.start(B)
        await die(dead)

        async def gone() -> bool:
            listed = await registry.list(Role.DRAFTER)
            assert A in listed
            return B not in listed

        await until(gone)
        dead = announcer()


async def test_a_restart_takes_the_place_of_the_old_process_and_keeps_it(
    registry: LeaseRegistry, announcer: Make
) -> None:
    frozen, fresh = announcer(), announcer()
    await frozen.start(A)
    again = replace(A, instance_id="a2")
    await fresh.start(again)
    assert await registry.list(Role.DRAFTER) == (again,)

    async def refused() -> bool:
        assert await registry.list(Role.DRAFTER) == (again,)
        return bool(frozen.troubles)

    await until(refused)
    assert "another instance (a2)" in frozen.troubles[0]
    await frozen.close()  # what it takes out is not its own any more
    assert await registry.list(Role.DRAFTER) == (again,)


async def test_load_is_told_with_a_heartbeat_and_draining_at_once(
    ledgers: Ledgers, registry: LeaseRegistry, announcer: Make
) -> None:
    lazy = LeaseAnnouncer(ledgers(), lease_s=3000.0, heartbeat_s=1000.0)
    await lazy.start(A)
    lazy.update(load=Load(1, 2, 3, 0.5))
    lazy.update(draining=True)
    told = replace(A, draining=True, load=Load(1, 2, 3, 0.5))
    await until(lambda: listed_are(registry, told))
    await lazy.close()
    quick = announcer()
    await quick.start(B)
    quick.update(load=Load(4, 5, 6))
    await until(lambda: listed_are(registry, replace(B, load=Load(4, 5, 6))))


async def test_a_watch_tells_each_change_once_and_ends_with_the_registry(
    registry: LeaseRegistry, announcer: Make
) -> None:
    seen: list[tuple[Instance, ...]] = []

    async def watch() -> None:
        async for instances in registry.watch(Role.DRAFTER, "draft"):
            seen.append(instances)

    async def saw(*expected: tuple[Instance, ...]) -> None:
        async def so() -> bool:
            return len(seen) >= len(expected)

        await until(so)
        assert seen == list(expected)

    watching = asyncio.create_task(watch())
    await saw(())
    one, other = announcer(), announcer()
    await other.start(C)  # another name: no change
    await one.start(A)
    await saw((), (A,))
    one.update(draining=True)
    await saw((), (A,), (replace(A, draining=True),))
    await one.close()
    await saw((), (A,), (replace(A, draining=True),), ())
    await registry.close()
    await watching


async def test_who_dies_is_gone_when_its_lease_is_over(registry: LeaseRegistry, announcer: Make) -> None:
    first, second = announcer(), announcer()
    await first.start(A)
    await second.start(B)
    await die(first)
    await until(lambda: listed_are(registry, B))


@pytest.mark.parametrize("ledgers", ["serve"], indirect=True)
async def test_a_registry_that_is_replaced_makes_nobody_vanish(
    handle: Handle, registry: LeaseRegistry, announcer: Make
) -> None:
    one, dead = announcer(), announcer()
    await one.start(A)
    await dead.start(B)
    assert await registry.list(Role.DRAFTER) == (A, B)
    handle.replica = None
    assert await registry.list(Role.DRAFTER) == (A, B)
    assert "is away" in registry.troubles[0] and "stays in force" in registry.troubles[0]

    async def told() -> bool:
        return bool(one.troubles)

    await until(told)
    await die(dead)
    handle.replica = RegistryReplica()  # it knows nobody

    async def b_is_gone() -> bool:
        listed = await registry.list(Role.DRAFTER)
        assert A in listed
        return B not in listed

    await until(b_is_gone)
    assert registry.troubles == one.troubles == ()


@pytest.mark.parametrize("ledgers", ["serve"], indirect=True)
async def test_a_registry_that_does_not_answer_is_waited_for_no_longer_than_its_timeout(
    handle: Handle, ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(handle.replica, "read", never)
    with pytest.raises(UnavailableError, match=r"did not answer within 0\.2 s"):
        await ledgers().read()


@pytest.mark.parametrize("ledgers", ["serve"], indirect=True)
async def test_what_cannot_be_read_is_left_out(
    handle: Handle, registry: LeaseRegistry, announcer: Make
) -> None:
    await announcer().start(A)
    assert handle.replica is not None
    await handle.replica.enter("drafter/draft/h", 60.0, "x", "", '{"role":"king"}')
    assert await registry.list(Role.DRAFTER) == (A,)
