"""The commit writer against a real server that is frozen, killed and brought back."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.errors import SessionNotFoundError
from outrider.core.sessions import FinishReason, SessionRecord
from outrider.sessions.redis import RedisStore
from tests.integration.sessions.records import RECORD, commit, record
from tests.integration.sessions.writers import PATIENCE_S, writing
from tests.servers import RedisServer


async def test_commits_arrive_in_order_and_in_few_batches(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, watcher):
        for index in range(3):
            await store.create(record(f"s-{index}"))
        for step in range(100):
            writer.put([commit(step, step, session_id=f"s-{index}") for index in range(3)])
        assert writer.pending == 300
        assert await writer.flush(PATIENCE_S)
        for index in range(3):
            assert (await store.load(f"s-{index}")).tokens == tuple(range(100))
        assert sum(watcher.batches) == 300
        assert len(watcher.batches) == 1  # all of it was put before the task ran
        assert not writer.degraded
        assert watcher.errors == []


async def test_one_session_is_settled_while_another_one_waits(server: RedisServer) -> None:
    async with writing(server.url, max_pending=4) as (writer, store, watcher):
        assert await writer.settle("s-1", 0.0)  # nothing is to be written
        await store.create(RECORD)
        writer.put([commit(0, 5)])
        assert await writer.settle("s-1", PATIENCE_S)
        assert (await store.load("s-1")).tokens == (5,)
        server.freeze()
        writer.put([commit(1, 6)])
        assert not await writer.settle("s-1", 0.05)
        assert await writer.settle("s-2", 0.0)
        server.thaw()
        assert await writer.settle("s-1", PATIENCE_S)
        assert (await store.load("s-1")).tokens == (5, 6)
        writer.put([commit(9, 1)])  # a gap: given up
        assert not await writer.settle("s-1", 0.5) and watcher.lost


async def test_create_commit_truncate_in_this_order(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, _):
        writer.create(RECORD)
        writer.put([commit(0, 5, 6), commit(2, 7)])
        writer.truncate("s-1", 1, 2, FinishReason.STOP)
        assert await writer.flush(PATIENCE_S)
        assert await store.load("s-1") == record(tokens=(5, 6), finish_reason=FinishReason.STOP)


async def test_frozen_and_back(server: RedisServer) -> None:
    async with writing(server.url, timeout_s=0.3) as (writer, store, watcher):
        await store.create(RECORD)
        writer.put([commit(0, 0)])
        assert await writer.flush(PATIENCE_S)
        server.freeze()
        for step in range(1, 50):
            writer.put([commit(step, step)])
        await watcher.until(lambda: "store_unavailable" in watcher.errors)
        assert writer.degraded
        assert not await writer.flush(0.0)
        server.thaw()
        assert await writer.flush(PATIENCE_S)
        await watcher.until(lambda: not writer.degraded)
        patient = RedisStore(server.url, timeout_s=10.0)
        assert (await patient.load("s-1")).tokens == tuple(range(50))
        await patient.close()


async def test_created_while_away(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, watcher):
        server.stop()
        writer.create(RECORD)
        writer.put([commit(0, 5)])
        await watcher.until(lambda: writer.degraded)
        server.start()
        assert await writer.flush(PATIENCE_S)
        assert await store.load("s-1") == record(tokens=(5,))


async def test_sessions_that_the_store_forgot_are_written_anew(server: RedisServer) -> None:
    current = RECORD

    def snapshot(session_id: str) -> SessionRecord | None:
        return current if session_id == "s-1" else None

    async with writing(server.url, snapshot=snapshot) as (writer, store, _):
        await store.create(RECORD)
        writer.put([commit(0, 5)])
        assert await writer.flush(PATIENCE_S)
        server.stop()
        server.start()  # empty
        current = record(tokens=(5, 6))
        writer.put([commit(1, 6)])
        assert await writer.flush(PATIENCE_S)
        current = record(tokens=(5, 6, 7))
        writer.put([commit(2, 7)])
        assert await writer.flush(PATIENCE_S)
        assert await store.load("s-1") == current
        assert not writer.degraded


async def test_without_a_snapshot_a_forgotten_session_is_reported(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, watcher):
        writer.put([commit(0, 5, session_id="nobody")])
        assert await writer.flush(PATIENCE_S)
        assert watcher.errors == ["session_not_found"]
        assert watcher.lost == 1
        assert writer.degraded
        writer.put([commit(1, 6, session_id="nobody", finish=FinishReason.STOP)])
        assert not writer.degraded  # it is over
        with pytest.raises(SessionNotFoundError):
            await store.load("nobody")


async def test_a_full_buffer_gives_up_the_oldest_session_as_a_whole(server: RedisServer) -> None:
    async with writing(server.url, max_pending=10) as (writer, store, watcher):
        for name in ("old", "young"):
            await store.create(record(name))
        server.freeze()
        for step in range(6):
            writer.put([commit(step, step, session_id="old")])
        for step in range(5):
            writer.put([commit(step, step, session_id="young")])
        assert watcher.lost == 6
        assert writer.pending == 5
        assert watcher.most_pending <= 10
        assert writer.degraded
        writer.put([commit(6, 6, session_id="old")])  # would leave a gap
        assert watcher.lost == 7
        server.thaw()
        assert await writer.flush(PATIENCE_S)
        assert (await store.load("young")).tokens == tuple(range(5))
        # What was under way when it was given up may have arrived; never less, never in part.
        assert (await store.load("old")).tokens in ((), tuple(range(6)))
        assert writer.degraded
        writer.forget("old")
        assert not writer.degraded


async def test_what_was_given_up_is_written_anew_with_a_snapshot(server: RedisServer) -> None:
    whole = record("old", tokens=tuple(range(8)))

    def snapshot(session_id: str) -> SessionRecord | None:
        return whole if session_id == "old" else None

    async with writing(server.url, max_pending=10, snapshot=snapshot) as (writer, store, watcher):
        for name in ("old", "young"):
            await store.create(record(name))
        server.freeze()
        for step in range(6):
            writer.put([commit(step, step, session_id="old")])
        for step in range(5):
            writer.put([commit(step, step, session_id="young")])
        writer.put([commit(6, 6, 7, session_id="old")])
        assert watcher.lost == 7
        server.thaw()
        assert await writer.flush(PATIENCE_S)
        assert await store.load("old") == whole
        assert not writer.degraded


async def test_a_fenced_session_is_reported_and_others_go_on(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, watcher):
        for name in ("mine", "theirs"):
            await store.create(record(name))
        await store.claim("theirs")
        writer.put([commit(0, 5, session_id="theirs"), commit(0, 5, session_id="mine")])
        writer.put([commit(1, 6, session_id="theirs"), commit(1, 6, session_id="mine")])
        assert await writer.flush(PATIENCE_S)
        assert watcher.fenced == ["theirs"]
        assert (await store.load("mine")).tokens == (5, 6)
        assert (await store.load("theirs")).tokens == ()
        assert not writer.degraded
        writer.truncate("theirs", 1, 0, FinishReason.CANCELLED)
        assert await writer.flush(PATIENCE_S)
        assert watcher.fenced == ["theirs", "theirs"]


async def test_a_create_whose_answer_was_lost_is_taken_up(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, watcher):
        await store.create(RECORD)  # as if the writer's first try had come through
        writer.create(RECORD)
        writer.put([commit(0, 5)])
        assert await writer.flush(PATIENCE_S)
        assert await store.load("s-1") == record(tokens=(5,))
        assert watcher.errors == []


async def test_a_create_of_an_id_that_others_use_is_fenced(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, watcher):
        await store.create(record(prompt=(9,)))
        writer.create(RECORD)
        writer.put([commit(0, 5)])
        assert await writer.flush(PATIENCE_S)
        assert watcher.fenced == ["s-1"]
        assert await store.load("s-1") == record(prompt=(9,))


async def test_a_conflict_is_given_up_after_one_try_to_mend_it(server: RedisServer) -> None:
    asked: list[str] = []

    def snapshot(session_id: str) -> SessionRecord | None:
        asked.append(session_id)
        return record(tokens=(8, 8))

    async with writing(server.url, snapshot=snapshot) as (writer, store, watcher):
        await store.create(record(tokens=(5,)))
        writer.put([commit(0, 9)])
        assert await writer.flush(PATIENCE_S)
        await watcher.until(lambda: len(watcher.errors) == 2)
        assert watcher.errors == ["protocol", "protocol"]
        assert asked == ["s-1"]
        assert (await store.load("s-1")).tokens == (5,)
        assert writer.degraded


async def test_close_leaves_no_task_and_says_what_is_left(server: RedisServer) -> None:
    async with writing(server.url, timeout_s=0.2) as (writer, _, _):
        writer.create(RECORD)
        assert await writer.close(PATIENCE_S)
        server.freeze()
        writer.put([commit(0, 5)])
        assert not await writer.close(0.0)
        assert writer.degraded
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "commit-writer"]
