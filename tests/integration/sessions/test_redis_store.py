"""What only a Redis server can show: keys, round trips, a server that goes away."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from outrider.config.schema import StoreConfig
from outrider.core.errors import ConfigError, InternalError, SessionNotFoundError, StoreUnavailableError
from outrider.core.sessions import FinishReason
from outrider.redis_link.connect import MAX_CONNECTIONS
from outrider.sessions import open_store
from outrider.sessions.redis import RedisStore
from outrider.sessions.scripts import keys_of
from tests.integration.sessions.conftest import TTL_S
from tests.integration.sessions.counting import calls, turn_counter
from tests.integration.sessions.records import RECORD, commit, record
from tests.servers import RedisServer, free_port, redis_server


async def test_keys_and_their_content(redis_store: RedisStore, admin: Redis) -> None:
    await redis_store.create(RECORD)
    assert await admin.keys("*") == [b"outrider:{s-1}:meta"]
    await redis_store.append([commit(0, 1, 258)])
    assert sorted(await admin.keys("*")) == [b"outrider:{s-1}:meta", b"outrider:{s-1}:tokens"]
    assert await admin.get("outrider:{s-1}:tokens") == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    assert await admin.hget("outrider:{s-1}:meta", "epoch") == b"1"
    for key in keys_of("s-1"):
        assert 0 < await admin.pttl(key) <= TTL_S * 1000
    await redis_store.truncate("s-1", 1, 1, FinishReason.STOP)
    for key in keys_of("s-1"):
        assert 0 < await admin.pttl(key) <= TTL_S * 1000
    await redis_store.delete("s-1")
    assert await admin.keys("*") == []


async def test_one_round_trip_for_any_number_of_sessions(shared_server: RedisServer, admin: Redis) -> None:
    await admin.flushall()
    async with turn_counter(shared_server.port) as (port, turns):
        store = RedisStore(f"redis://127.0.0.1:{port}/0", timeout_s=10.0)
        for index in range(100):
            await store.create(record(f"s-{index}"))
        await store.append([commit(0, 1, session_id="s-0")])
        await admin.config_resetstat()
        for sessions in (1, 2, 100):
            before = turns[0]
            results = await store.append(
                [commit(0, 1, 2, session_id=f"s-{index}") for index in range(sessions)]
            )
            assert results == [None] * sessions
            assert turns[0] - before == 1
        counted = await calls(admin)
        assert counted.pop("evalsha") == 3
        inside = {"hmget", "hset", "strlen", "getrange", "append", "pexpire"}
        assert set(counted) - inside <= {"config|resetstat", "info"}  # the test's own
        await store.close()


async def test_scripts_are_loaded_again_when_the_server_forgot_them(
    redis_store: RedisStore, admin: Redis
) -> None:
    await redis_store.create(RECORD)
    await admin.script_flush()
    commits = [commit(0, 5), commit(1, 6), commit(0, 5, session_id="nobody")]
    first, second, third = await redis_store.append(commits)
    assert (first, second, type(third)) == (None, None, SessionNotFoundError)
    await admin.script_flush()
    assert (await redis_store.claim("s-1")).tokens == (5, 6)


async def test_tokens_that_were_evicted_take_the_session_with_them(
    redis_store: RedisStore, admin: Redis
) -> None:
    await redis_store.create(record(tokens=(5, 6)))
    await admin.delete(keys_of("s-1")[1])
    with pytest.raises(SessionNotFoundError):
        await redis_store.load("s-1")
    assert isinstance((await redis_store.append([commit(2, 7)]))[0], SessionNotFoundError)


async def test_a_key_of_another_kind_spoils_only_its_own_session(
    redis_store: RedisStore, admin: Redis
) -> None:
    await redis_store.create(RECORD)
    await admin.set(keys_of("other")[0], "x")
    results = await redis_store.append([commit(0, 5, session_id="other"), commit(0, 5)])
    assert isinstance(results[0], InternalError)
    assert results[1] is None
    with pytest.raises(InternalError, match="wrong kind"):
        await redis_store.load("other")


async def test_killed_and_back(server: RedisServer) -> None:
    store = RedisStore(server.url, timeout_s=10.0)
    await store.create(RECORD)
    server.stop()
    for call in (
        store.ping(),
        store.create(RECORD),
        store.load("s-1"),
        store.claim("s-1"),
        store.append([commit(0, 5)]),
        store.truncate("s-1", 1, 0, FinishReason.STOP),
        store.delete("s-1"),
    ):
        with pytest.raises(StoreUnavailableError, match=f"127.0.0.1:{server.port}/0 is away"):
            await call
    server.start()
    await store.ping()
    await store.create(RECORD)
    assert await store.append([commit(0, 5)]) == [None]
    await store.close()


async def test_frozen_and_back(server: RedisServer) -> None:
    store = RedisStore(server.url, timeout_s=0.2)
    await store.create(RECORD)
    server.freeze()
    for call in (store.append([commit(0, 5)]), store.load("s-1"), store.ping()):
        with pytest.raises(StoreUnavailableError, match=r"did not answer within 0\.2 s"):
            await call
    server.thaw()
    async with asyncio.timeout(60):
        while True:
            try:
                assert await store.append([commit(0, 5), commit(1, 6)]) == [None, None]
                assert (await store.load("s-1")).tokens == (5, 6)
                break
            except StoreUnavailableError:
                pass  # 0.2 s are little on a busy machine
    await store.close()


async def test_calls_that_were_given_up_do_not_mix_up_later_answers(server: RedisServer) -> None:
    """Answers that come after all must not be taken for those of the next calls."""
    store = RedisStore(server.url, timeout_s=10.0)
    names = [f"s-{index}" for index in range(20)]
    for index, name in enumerate(names):
        await store.create(record(name, prompt=(index,)))
    server.freeze()
    calls = [asyncio.create_task(store.load(name)) for name in names]
    await asyncio.wait(calls, timeout=0.05)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    server.thaw()
    found = await asyncio.gather(*(store.load(name) for name in reversed(names)))
    assert [item.session_id for item in found] == names[::-1]
    assert [item.prompt for item in found] == [(index,) for index in reversed(range(20))]
    await store.close()


async def test_more_calls_at_once_than_connections(redis_store: RedisStore, admin: Redis) -> None:
    names = [f"s-{index}" for index in range(5 * MAX_CONNECTIONS)]
    await asyncio.gather(*(redis_store.create(record(name)) for name in names))
    loaded = await asyncio.gather(*(redis_store.load(name) for name in names))
    assert [item.session_id for item in loaded] == names
    assert (await admin.info("clients"))["connected_clients"] <= MAX_CONNECTIONS + 1


async def test_on_a_cluster_node_that_checks_slots() -> None:
    """A node in cluster mode refuses scripts whose keys lie in different slots."""
    # Left to itself, the node takes its port + 10000 for the cluster's bus, which may be past the last port.
    bus = str(free_port())
    with redis_server("--cluster-enabled", "yes", "--cluster-port", bus) as node:
        admin = Redis.from_url(node.url, protocol=2)
        await admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        store = RedisStore(node.url, timeout_s=10.0)
        async with asyncio.timeout(60):
            while b"cluster_state:ok" not in await admin.execute_command("CLUSTER", "INFO"):
                await asyncio.sleep(0.01)
        names = [f"s-{index}" for index in range(20)]
        for name in names:
            await store.create(record(name))
        assert await store.append([commit(0, 5, session_id=name) for name in names]) == [None] * 20
        for name in names:
            assert (await store.claim(name)).tokens == (5,)
            await store.truncate(name, 2, 0, FinishReason.STOP)
            await store.delete(name)
        await store.close()
        await admin.aclose()


async def test_no_password_in_any_text() -> None:
    with redis_server(password="hunter2") as server:
        store = RedisStore(server.url, timeout_s=10.0)
        await store.ping()
        await store.close()
        wrong = RedisStore(f"redis://user:not-hunter2@127.0.0.1:{server.port}/0", timeout_s=10.0)
        with pytest.raises(StoreUnavailableError) as caught:
            await wrong.ping()
        assert "hunter2" not in str(caught.value)
        assert str(server.port) in str(caught.value)
        await wrong.close()
    with pytest.raises(StoreUnavailableError) as caught:
        await store.ping()
    assert "hunter2" not in str(caught.value)
    await store.close()


async def test_a_full_server_is_unavailable_not_a_defect() -> None:
    with redis_server("--maxmemory", "1") as server:
        store = RedisStore(server.url, timeout_s=10.0)
        with pytest.raises(StoreUnavailableError, match=r"is full: raise its maxmemory.* \(OOM\)"):
            await store.create(RECORD)
        await store.close()


async def test_from_the_configuration(shared_server: RedisServer) -> None:
    store = open_store(StoreConfig(kind="redis", url=shared_server.url, timeout_s=10.0))
    await store.ping()
    await store.close()
    await open_store(StoreConfig(kind="memory")).ping()
    with pytest.raises(ConfigError, match=r"store\.url") as caught:
        open_store(StoreConfig(kind="redis", url="http://user:hunter2@host"))
    assert "hunter2" not in str(caught.value)
