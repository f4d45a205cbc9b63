"""The store on a real Cluster: every session on its node, also while a part of it fails over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from redis.crc import key_slot

from outrider.core.errors import SessionNotFoundError, StoreUnavailableError
from outrider.core.sessions import FinishReason
from outrider.sessions.redis import RedisStore
from outrider.sessions.scripts import keys_of
from tests.integration.sessions.groups import Cluster, ask, cluster
from tests.integration.sessions.records import commit, record
from tests.integration.sessions.writers import PATIENCE_S, Live, writing
from tests.servers import RedisServer

NAMES = [f"s-{index}" for index in range(30)]


@pytest.fixture
async def group() -> AsyncIterator[Cluster]:
    """A Cluster of this test's own."""
    async with cluster() as joined:
        yield joined


def on_first(name: str) -> bool:
    """Whether a session's slot belongs to the first master."""
    return key_slot(keys_of(name)[0].encode()) < 16384 // 3


async def test_sessions_live_on_all_nodes_and_a_step_is_one_round_trip_to_each(group: Cluster) -> None:
    store = RedisStore(group.url, timeout_s=10.0)
    assert store.address == group.url
    for name in NAMES:
        await store.create(record(name))
    for node in group.masters:
        await ask(node, "CONFIG", "RESETSTAT")
    assert await store.append([commit(0, 5, 6, session_id=name) for name in NAMES]) == [None] * len(NAMES)
    counted = [
        (await ask(node, "INFO", "commandstats"))["cmdstat_evalsha"]["calls"] for node in group.masters
    ]
    assert sum(counted) == len(NAMES) and min(counted) > 0
    for node in group.masters:
        assert await ask(node, "DBSIZE") > 0
    for name in NAMES:
        assert (await store.claim(name)).tokens == (5, 6)
        await store.truncate(name, 2, 1, FinishReason.STOP)
        assert await store.load(name) == record(name, epoch=2, tokens=(5,), finish_reason=FinishReason.STOP)
        await store.restore(record(name + "-2", epoch=3))
        await store.delete(name)
        with pytest.raises(SessionNotFoundError):
            await store.load(name)
    await store.ping()
    await store.close()


async def test_nodes_that_forgot_the_scripts_are_told_again(group: Cluster) -> None:
    store = RedisStore(group.url, timeout_s=10.0)
    for name in NAMES:
        await store.create(record(name))
    for node in group.masters:
        await ask(node, "SCRIPT", "FLUSH")
    assert await store.append([commit(0, 5, session_id=name) for name in NAMES]) == [None] * len(NAMES)
    for node in group.masters:
        await ask(node, "SCRIPT", "FLUSH")
    assert (await store.load(NAMES[0])).tokens == (5,)
    await store.close()


async def test_a_replica_that_takes_over_in_the_middle_of_streams_loses_nothing(group: Cluster) -> None:
    live = Live(NAMES)
    async with writing(group.url, timeout_s=2.0, snapshot=live.sessions.get) as (writer, store, watcher):
        live.begin(writer)
        taking_over = asyncio.create_task(group.take_over())
        while not taking_over.done():
            live.step(writer)
            await asyncio.sleep(0.01)
        await taking_over
        group.masters[0].stop()
        live.step(writer)
        assert await writer.flush(PATIENCE_S)
        for name in NAMES:
            assert await store.load(name) == live.sessions[name]
        assert watcher.fenced == []
        assert not writer.degraded


async def test_a_frozen_master_whose_replica_takes_over_loses_nothing(group: Cluster) -> None:
    async with writing(group.url, timeout_s=1.0) as (writer, store, watcher):
        for name in NAMES:
            writer.create(record(name))
        assert await writer.flush(PATIENCE_S)
        group.masters[0].freeze()
        writer.put([commit(0, 5, session_id=name) for name in NAMES])
        await watcher.until(lambda: writer.degraded)
        await group.take_over()
        writer.put([commit(1, 6, session_id=name) for name in NAMES])
        assert await writer.flush(PATIENCE_S)
        for name in NAMES:
            assert (await store.load(name)).tokens == (5, 6)
        assert watcher.fenced == []


@pytest.mark.parametrize("how", [RedisServer.stop, RedisServer.freeze])
async def test_while_one_part_is_away_the_sessions_of_the_others_are_written(
    group: Cluster, how: Callable[[RedisServer], None]
) -> None:
    async with writing(group.url, timeout_s=2.0) as (writer, store, watcher):
        for name in NAMES:
            writer.create(record(name))
        assert await writer.flush(PATIENCE_S)
        how(group.masters[0])
        writer.put([commit(0, 5, session_id=name) for name in NAMES])
        away = sum(map(on_first, NAMES))
        await watcher.until(lambda: writer.degraded and writer.pending == away)
        for name in NAMES:
            if not on_first(name):
                assert (await store.load(name)).tokens == (5,)
        with pytest.raises(StoreUnavailableError):
            await store.load(next(filter(on_first, NAMES)))
        assert "redis+cluster://" in writer.troubles[0] and writer.troubles[0].endswith(f": {away}")
        await group.take_over()
        assert await writer.flush(PATIENCE_S)
        for name in filter(on_first, NAMES):
            assert (await store.load(name)).tokens == (5,)
