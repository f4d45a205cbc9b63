"""Sessions that the store lost: written anew by whoever has the highest epoch, and by nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from outrider.core.sessions import FinishReason, SessionRecord
from tests.integration.sessions.counting import calls, turn_counter
from tests.integration.sessions.records import RECORD, commit, record
from tests.integration.sessions.writers import PATIENCE_S, writing
from tests.servers import RedisServer


async def test_a_restore_waits_for_a_store_that_is_away(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, watcher):
        server.stop()
        writer.restore(record(epoch=3, tokens=(5, 6)))
        writer.put([commit(2, 7, epoch=3)])
        await watcher.until(lambda: writer.degraded)
        server.start()
        assert await writer.flush(PATIENCE_S)
        assert await store.load("s-1") == record(epoch=3, tokens=(5, 6, 7))
        assert watcher.fenced == []


async def test_a_restore_whose_answer_was_lost_is_taken_up(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, watcher):
        restored = record(epoch=2, tokens=(5,))
        await store.restore(restored)  # as if the first try had come through
        writer.restore(restored)
        writer.put([commit(1, 6, epoch=2, finish=FinishReason.STOP)])
        assert await writer.flush(PATIENCE_S)
        assert await store.load("s-1") == record(epoch=2, tokens=(5, 6), finish_reason=FinishReason.STOP)
        writer.restore(restored)  # a late repetition is no harm
        assert await writer.flush(PATIENCE_S)
        assert watcher.fenced == []


async def test_of_two_who_restore_with_one_epoch_the_second_is_fenced(server: RedisServer) -> None:
    restored = record(epoch=2, tokens=(5,))
    async with writing(server.url) as first, writing(server.url) as second:
        for writer, _, _ in (first, second):
            writer.restore(restored)
            assert await writer.flush(PATIENCE_S)
        for writer, _, _ in (first, second):
            writer.put([commit(1, 6, epoch=2)])
            assert await writer.flush(PATIENCE_S)
        assert first[2].fenced == []
        assert set(second[2].fenced) == {"s-1"}
        with pytest.raises(Exception, match="restored with epoch 2 by somebody else"):
            await second[1].truncate("s-1", 2, 0, FinishReason.STOP)
        assert await first[1].load("s-1") == record(epoch=2, tokens=(5, 6))


async def test_a_restore_of_what_somebody_claimed_since_is_fenced(server: RedisServer) -> None:
    async with writing(server.url) as (writer, store, watcher):
        await store.create(RECORD)
        await store.claim("s-1")
        await store.claim("s-1")
        writer.restore(record(epoch=2))
        assert await writer.flush(PATIENCE_S)
        assert watcher.fenced == ["s-1"]
        assert await store.load("s-1") == record(epoch=3)


class Owner:
    """What a verifier knows of the one session."""

    def __init__(self, epoch: int, *tokens: int) -> None:
        self.current = record(epoch=epoch, tokens=tokens)

    def snapshot(self, session_id: str) -> SessionRecord | None:
        return self.current

    def go_on(self, writer: Any, token: int) -> None:
        held = self.current
        self.current = record(epoch=held.epoch, tokens=(*held.tokens, token))
        writer.put([commit(len(held.tokens), token, epoch=held.epoch)])


@pytest.mark.parametrize("first", ["frozen", "restored"])
async def test_after_a_flush_the_restored_owner_wins_whoever_writes_first(
    server: RedisServer, first: str
) -> None:
    frozen, restored = Owner(1, 5), Owner(2, 5)
    async with (
        writing(server.url, snapshot=frozen.snapshot) as (old, store, old_watcher),
        writing(server.url, snapshot=restored.snapshot) as (new, _, new_watcher),
    ):
        await store.create(record(tokens=(5,)))
        server.stop()
        server.start()  # empty
        if first == "frozen":  # it thaws, misses its session and writes it anew
            frozen.go_on(old, 6)
            assert await old.flush(PATIENCE_S)
            assert await store.load("s-1") == frozen.current
        else:
            new.restore(restored.current)
        restored.go_on(new, 6)
        assert await new.flush(PATIENCE_S)
        assert await store.load("s-1") == restored.current
        frozen.go_on(old, 7)
        assert await old.flush(PATIENCE_S)
        assert old_watcher.fenced == ["s-1"]
        restored.go_on(new, 7)
        assert await new.flush(PATIENCE_S)
        assert new_watcher.fenced == []
        assert await store.load("s-1") == restored.current


async def test_a_replica_that_had_not_heard_of_a_claim_is_put_right(server: RedisServer) -> None:
    owner = Owner(2, 5)
    async with writing(server.url, snapshot=owner.snapshot) as (writer, store, watcher):
        await store.create(RECORD)  # what the promoted replica knows: the first owner, and less of the tokens
        owner.go_on(writer, 6)
        assert await writer.flush(PATIENCE_S)
        assert await store.load("s-1") == owner.current
        assert not writer.degraded
        assert watcher.fenced == []


async def test_tokens_that_were_evicted_are_written_anew(server: RedisServer) -> None:
    owner = Owner(1, 5)
    async with writing(server.url, snapshot=owner.snapshot) as (writer, store, _):
        await store.create(owner.current)
        client = Redis.from_url(server.url, protocol=2)
        await client.delete("outrider:{s-1}:tokens")
        await client.aclose()
        owner.go_on(writer, 6)
        assert await writer.flush(PATIENCE_S)
        assert await store.load("s-1") == owner.current


async def test_an_older_epoch_cannot_restore_what_lost_only_its_tokens(server: RedisServer) -> None:
    async with writing(server.url) as (_, store, _):
        await store.create(record(epoch=3, tokens=(5,)))
        client = Redis.from_url(server.url, protocol=2)
        await client.delete("outrider:{s-1}:tokens")
        await client.aclose()
        with pytest.raises(Exception, match="belongs to epoch 3"):
            await store.restore(record(epoch=2, tokens=(5,)))


async def test_all_that_a_step_writes_is_one_command_in_one_round_trip(
    shared_server: RedisServer, admin: Redis
) -> None:
    await admin.flushall()
    async with (
        turn_counter(shared_server.port) as (port, turns),
        writing(f"redis://127.0.0.1:{port}/0") as (writer, store, watcher),
    ):
        for index in range(20):
            await store.create(record(f"old-{index}"))
        await admin.config_resetstat()
        before = turns[0]
        for index in range(20):
            writer.create(record(f"new-{index}"))
            writer.restore(record(f"back-{index}", epoch=2, tokens=(1,)))
            writer.put([commit(0, 5, session_id=f"new-{index}")])
            if index % 2:
                writer.put([commit(0, 5, session_id=f"old-{index}")])
            else:
                writer.truncate(f"old-{index}", 1, 0, FinishReason.STOP)
        assert await writer.flush(PATIENCE_S)
        assert turns[0] - before == 1
        assert (await calls(admin))["evalsha"] == 1
        assert watcher.batches == [80]
        assert (await store.load("new-3")).tokens == (5,)
        assert (await store.load("back-3")).tokens == (1,)
        assert (await store.load("old-3")).tokens == (5,)
        assert (await store.load("old-4")).finish_reason is FinishReason.STOP


async def test_the_owner_is_stored_although_an_older_one_that_drew_other_tokens_wrote_first(
    server: RedisServer,
) -> None:
    old = record(epoch=1, tokens=(5, 8, 8))  # drawn afresh by the rules "token" and "block"
    new = record(epoch=2, tokens=(5, 6))
    stored: list[tuple[str, int]] = []
    async with (
        writing(server.url, snapshot=lambda _: old) as (frozen, store, fenced),
        writing(server.url, snapshot=lambda _: new, on_stored=lambda *told: stored.append(told)) as (
            writer,
            _,
            _,
        ),
    ):
        frozen.restore(old)  # the store had lost the session
        assert await frozen.flush(PATIENCE_S)
        writer.put([commit(1, 6, epoch=2)])
        assert await writer.flush(PATIENCE_S)
        assert await store.load("s-1") == new
        assert stored[-1] == ("s-1", 2) and not writer.degraded
        frozen.put([commit(3, 8)])
        await fenced.until(lambda: fenced.fenced == ["s-1"])
        assert await store.load("s-1") == new
