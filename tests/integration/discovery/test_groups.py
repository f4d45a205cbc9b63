"""The registry on a Cluster and behind sentinels: a failover of Redis makes nobody vanish."""

from __future__ import annotations

from redis.crc import key_slot

from outrider.config import OutriderConfig
from outrider.config.schema import RegistryConfig, StoreConfig
from outrider.discovery import Instance, LeaseAnnouncer, LeaseRegistry, Role, open_announcer, open_registry
from outrider.discovery.redis_ledger import key_of
from tests.integration.discovery.conftest import until
from tests.integration.sessions.groups import ask, cluster, watched

A = Instance(Role.DRAFTER, "127.0.0.1:1", "draft", "a1")
B = Instance(Role.DRAFTER, "127.0.0.1:2", "draft", "b1")


NAMESPACE = next(name for name in "abcdefghij" if key_slot(key_of(name).encode()) < 16384 // 3)
"""One that lives in the part of the Cluster that has a replica."""
KEY = key_of(NAMESPACE)


def settings(url: str) -> OutriderConfig:
    return OutriderConfig(
        registry=RegistryConfig(kind="redis", url=url, namespace=NAMESPACE, lease_s=2.0, heartbeat_s=0.1),
        store=StoreConfig(timeout_s=0.5),
    )


async def both(registry: LeaseRegistry, *announcers: LeaseAnnouncer) -> bool:
    """They are always there; True once nothing is wrong any more."""
    assert await registry.list(Role.DRAFTER) == (A, B)
    return not any((registry.troubles, *(one.troubles for one in announcers)))


async def entered(config: OutriderConfig) -> tuple[LeaseRegistry, LeaseAnnouncer, LeaseAnnouncer]:
    registry, one, other = open_registry(config, Role.DRAFTER), open_announcer(config), open_announcer(config)
    assert isinstance(registry, LeaseRegistry)
    assert isinstance(one, LeaseAnnouncer) and isinstance(other, LeaseAnnouncer)
    await one.start(A)
    await other.start(B)

    async def listed() -> bool:
        return await registry.list(Role.DRAFTER) == (A, B)

    await until(listed)
    return registry, one, other


async def left(registry: LeaseRegistry, *announcers: LeaseAnnouncer) -> None:
    for one in announcers:
        await one.close()

    async def empty() -> bool:
        return await registry.list(Role.DRAFTER) == ()

    await until(empty)  # after a failover whoever is not listed is kept for a lease
    await registry.close()


async def test_a_cluster_node_that_is_replaced() -> None:
    async with cluster() as group:
        registry, one, other = await entered(settings(group.url))
        group.masters[0].stop()
        await group.take_over()
        await until(lambda: both(registry, one, other))
        await left(registry, one, other)


async def test_a_server_that_sentinels_replace() -> None:
    async with watched() as group:
        registry, one, other = await entered(settings(group.url()))
        group.master.freeze()
        await group.fail_over()
        await until(lambda: both(registry, one, other))
        assert await ask(group.replica, "HLEN", KEY) == 4
        await left(registry, one, other)
