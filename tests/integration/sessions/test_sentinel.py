"""The store behind sentinels: it finds the master, also the next one."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.errors import StoreUnavailableError
from outrider.redis_link import connect
from outrider.sessions.redis import RedisStore
from tests.integration.sessions.groups import watched
from tests.integration.sessions.records import commit, record
from tests.integration.sessions.writers import PATIENCE_S, Live, writing
from tests.servers import free_port

NAMES = [f"s-{index}" for index in range(8)]


async def test_a_failover_in_the_middle_of_streams_loses_nothing() -> None:
    """Also what the old master confirmed and the new one never heard of is there in the end."""
    live = Live(NAMES)
    async with (
        watched() as group,
        writing(group.url(), timeout_s=2.0, snapshot=live.sessions.get) as (writer, store, watcher),
    ):
        live.begin(writer)
        live.step(writer)
        assert await writer.flush(PATIENCE_S)
        failing_over = asyncio.create_task(group.fail_over())
        while not failing_over.done():
            live.step(writer)
            await asyncio.sleep(0.01)
        await failing_over
        await group.settled()
        live.step(writer)
        assert await writer.flush(PATIENCE_S)
        promoted = RedisStore(group.replica.url, timeout_s=10.0)
        for name in NAMES:
            assert await promoted.load(name) == live.sessions[name]
            assert await store.load(name) == live.sessions[name]
        assert watcher.fenced == []
        assert not writer.degraded
        await promoted.close()


async def test_a_master_that_dies_is_replaced_and_a_sentinel_that_is_frozen_holds_nobody_up() -> None:
    async with watched() as group, writing(group.url(), timeout_s=2.0) as (writer, store, watcher):
        await store.create(record())
        writer.put([commit(0, 5)])
        assert await writer.flush(PATIENCE_S)
        group.sentinels[0].freeze()  # the one that is asked first
        group.master.stop()
        writer.put([commit(1, 6)])
        await watcher.until(lambda: writer.degraded)
        await group.fail_over()
        assert await writer.flush(PATIENCE_S)
        assert (await store.load("s-1")).tokens == (5, 6)
        assert watcher.fenced == []


async def test_logins_of_servers_and_sentinels_are_different_ones() -> None:
    users = "--user outrider on >hunter2 +@all -@admin ~outrider:* --user default on nopass ~* &* +@all"
    async with watched(*users.split(), sentinels=1, password="hunter3") as group:
        store = RedisStore(group.url("outrider:hunter2@", "?sentinel_password=hunter3"), timeout_s=10.0)
        await store.create(record())
        await store.close()
        for login, word in (("outrider:wrong@", "hunter3"), ("outrider:hunter2@", "wrong")):
            store = RedisStore(group.url(login, f"?sentinel_password={word}"), timeout_s=10.0)
            with pytest.raises(StoreUnavailableError) as caught:
                await store.ping()
            assert "hunter" not in str(caught.value)
            await store.close()


async def test_more_calls_at_once_than_connections() -> None:
    async with watched(sentinels=1) as group:
        client = connect(group.url(), timeout_s=10.0, max_connections=2)
        assert await asyncio.gather(*(client.ping() for _ in range(50))) == [True] * 50
        await client.aclose()


async def test_a_service_that_no_sentinel_knows() -> None:
    async with watched(sentinels=1) as group:
        store = RedisStore(group.url().replace("/main/", "/other/"), timeout_s=10.0)
        with pytest.raises(
            StoreUnavailableError, match=r"no sentinel that answers knows a master that is up$"
        ):
            await store.ping()
        await store.close()


async def test_sentinels_that_cannot_be_reached_are_counted() -> None:
    store = RedisStore(
        f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/main", timeout_s=10.0
    )
    with pytest.raises(StoreUnavailableError, match=r"is up; sentinels that cannot be asked: 2$"):
        await store.ping()
    await store.close()
