"""A store that is full, read-only, busy, loading, slow: what an operator reads, and that nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from redis import exceptions
from redis.asyncio import Redis

from outrider.core.errors import StoreUnavailableError
from outrider.sessions.redis import MAX_READS, RedisStore
from tests.integration.sessions.counting import calls
from tests.integration.sessions.records import RECORD, commit, record
from tests.integration.sessions.writers import PATIENCE_S, Live, writing
from tests.servers import RedisServer, free_port, redis_server

Command = tuple[str | int, ...]
CASES: dict[str, tuple[Command, Command]] = {
    r"is full: raise its maxmemory.* \(OOM\)": (
        ("CONFIG", "SET", "maxmemory", 1),
        ("CONFIG", "SET", "maxmemory", 0),
    ),
    r"is a read-only replica: the URL must name the master.* \(READONLY\)": (
        ("REPLICAOF", "127.0.0.1", free_port()),
        ("REPLICAOF", "NO", "ONE"),
    ),
    r"has too few replicas in good order: see min-replicas-to-write \(NOREPLICAS\)": (
        ("CONFIG", "SET", "min-replicas-to-write", 1),
        ("CONFIG", "SET", "min-replicas-to-write", 0),
    ),
    r"does not permit this user .* ~outrider:\* \(NOPERM\)": (
        ("ACL", "SETUSER", "outrider", "resetkeys"),
        ("ACL", "SETUSER", "outrider", "~outrider:*"),
    ),
}


@pytest.fixture
async def admin_of(server: RedisServer) -> Redis:
    """A client of the test's own server."""
    return Redis.from_url(server.url, protocol=2)


async def user_of(server: RedisServer, admin: Redis) -> str:
    """A URL with a user that may do what the documentation asks for."""
    rights = "+@read +@write +@scripting +@connection ~outrider:*"
    await admin.execute_command("ACL", "SETUSER", "outrider", "on", ">hunter2", *rights.split())
    return server.url.replace("redis://", "redis://outrider:hunter2@")


@pytest.mark.parametrize("words", CASES)
async def test_a_store_that_refuses_is_told_in_words_and_written_to_later(
    server: RedisServer, admin_of: Redis, words: str
) -> None:
    begin, end = CASES[words]
    live = Live(["s-0", "s-1"])
    url = await user_of(server, admin_of)
    async with writing(url, snapshot=live.sessions.get) as (writer, store, watcher):
        live.begin(writer)
        live.step(writer)
        assert await writer.flush(PATIENCE_S)
        assert writer.troubles == ()
        await admin_of.execute_command(*begin)
        live.step(writer)
        await watcher.until(lambda: writer.degraded)
        (trouble,) = writer.troubles
        with pytest.raises(StoreUnavailableError, match=words) as caught:
            await store.create(record("new"))
        assert trouble == f"{caught.value}; writes that wait for it: 2"
        assert trouble.startswith(f"session store redis://127.0.0.1:{server.port}/0 ")
        assert "hunter2" not in trouble
        await admin_of.execute_command(*end)
        live.step(writer)
        assert await writer.flush(PATIENCE_S)
        await watcher.until(lambda: not writer.degraded)
        for name, held in live.sessions.items():
            assert await store.load(name) == held
        assert watcher.fenced == []
    await admin_of.aclose()


async def until_raised(call: Callable[[], Awaitable[object]], words: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await call()
            except StoreUnavailableError as error:
                if words in str(error):
                    return


async def test_a_store_that_is_busy_with_a_script_says_so(server: RedisServer, admin_of: Redis) -> None:
    await admin_of.config_set("busy-reply-threshold", 10)
    store = RedisStore(server.url, timeout_s=10.0)
    endless = asyncio.create_task(admin_of.eval("while true do end", 0))
    await until_raised(lambda: store.create(RECORD), "is busy with a script that does not end")
    other = Redis.from_url(server.url, protocol=2)
    await other.script_kill()
    with pytest.raises(exceptions.ResponseError):
        await endless
    for client in (store, admin_of, other):
        await (client.close() if isinstance(client, RedisStore) else client.aclose())


async def test_a_store_that_loads_its_data_says_so_and_is_written_to_later() -> None:
    with redis_server("--enable-debug-command", "yes") as server:
        admin = Redis.from_url(server.url, protocol=2)
        live = Live([f"s-{index}" for index in range(20)])
        async with writing(server.url, snapshot=live.sessions.get) as (writer, store, _):
            live.begin(writer)
            live.step(writer)
            assert await writer.flush(PATIENCE_S)
            await admin.config_set("key-load-delay", 50_000)  # microseconds
            await admin.config_set("loading-process-events-interval-bytes", 1024)
            reloading = asyncio.create_task(admin.execute_command("DEBUG", "RELOAD"))
            await until_raised(store.ping, "was started a moment ago and still loads its data (LOADING)")
            live.step(writer)
            await reloading
            assert await writer.flush(PATIENCE_S)
            for name, held in live.sessions.items():
                assert await store.load(name) == held
        await admin.aclose()


async def test_a_flush_while_sessions_run_is_made_good(server: RedisServer, admin_of: Redis) -> None:
    live = Live([f"s-{index}" for index in range(5)])
    async with writing(server.url, snapshot=live.sessions.get) as (writer, store, watcher):
        live.begin(writer)
        for step in range(30):
            live.step(writer)
            if step % 10 == 5:
                await admin_of.flushall()
            await asyncio.sleep(0)
        assert await writer.flush(PATIENCE_S)
        live.step(writer)
        assert await writer.flush(PATIENCE_S)
        for name, held in live.sessions.items():
            assert await store.load(name) == held
        assert not writer.degraded and watcher.fenced == []
    await admin_of.aclose()


async def test_a_slow_store_is_asked_by_one_call_at_a_time(server: RedisServer, admin_of: Redis) -> None:
    store = RedisStore(server.url, timeout_s=60.0)
    await store.create(RECORD)
    await admin_of.config_resetstat()
    server.freeze()
    waiting = [asyncio.create_task(store.create(record(f"s-{index}"))) for index in range(2, 200)]
    waiting.append(asyncio.create_task(store.append([commit(0, 5)])))
    await asyncio.sleep(0)
    waiting += [asyncio.create_task(store.create(record(f"t-{index}"))) for index in range(200)]
    reading = [asyncio.create_task(store.load("s-1")) for _ in range(100)]
    await asyncio.sleep(0)
    server.thaw()
    await asyncio.gather(*waiting, *reading)
    assert (await calls(admin_of))["evalsha"] == 100 + 2  # what was asked meanwhile went with the second
    clients = (await admin_of.info("clients"))["connected_clients"]
    assert clients <= MAX_READS + 2
    await store.close()
    await admin_of.aclose()


async def test_a_caller_that_gave_up_is_not_written_for(server: RedisServer) -> None:
    store = RedisStore(server.url, timeout_s=60.0)
    await store.create(RECORD)
    server.freeze()
    first = asyncio.create_task(store.create(record("first")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # on its way
    given_up = asyncio.create_task(store.create(record("given-up")))
    kept = asyncio.create_task(store.create(record("kept")))
    await asyncio.sleep(0)
    given_up.cancel()
    server.thaw()
    await asyncio.gather(first, kept)
    admin = Redis.from_url(server.url, protocol=2)
    assert await admin.exists("outrider:{kept}:meta") == 1
    assert await admin.exists("outrider:{given-up}:meta") == 0
    await admin.aclose()
    await store.close()


async def test_a_closed_store_answers_those_who_wait(server: RedisServer) -> None:
    store = RedisStore(server.url, timeout_s=60.0)
    await store.create(RECORD)
    server.freeze()
    waiting = [asyncio.create_task(store.create(record(f"s-{index}"))) for index in range(2, 5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(store.create(record("late"))))
    await asyncio.sleep(0)
    await store.close()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, StoreUnavailableError) and "closed" in str(result)
