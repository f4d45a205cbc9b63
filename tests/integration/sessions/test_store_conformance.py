"""What every session store does. Run against memory and against a real server."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.errors import ProtocolError, SessionExistsError, SessionNotFoundError, StaleEpochError
from outrider.core.params import Acceptance, LogprobParams, SamplingParams, SpeculationParams
from outrider.core.sessions import FinishReason
from tests.integration.sessions.conftest import TTL_S, Bench
from tests.integration.sessions.records import EDITS, RECORD, commit, record


async def kinds(bench: Bench, *commits: object) -> list[type | None]:
    """Append, and what came back as types."""
    results = await bench.store.append(commits)  # type: ignore[arg-type]
    return [None if result is None else type(result) for result in results]


async def test_a_session_comes_back_as_it_was_stored(bench: Bench) -> None:
    await bench.store.create(RECORD)
    assert await bench.store.load("s-1") == RECORD


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": (5, 6, 7), "epoch": 9},
        {"finish_reason": FinishReason.LENGTH, "tokens": (0,)},
        {"speculation": SpeculationParams(enabled=False)},
        {"speculation": SpeculationParams(acceptance=Acceptance.BLOCK)},
        {"sampling": SamplingParams(0.0, typical_p=0.1, seed=3)},
        {"sampling": SamplingParams(edits=EDITS)},
        {"logprobs": LogprobParams(top=0)},
        {"logprobs": LogprobParams(prompt_top=20)},
        {"prompt": ()},
        {"model": ""},
    ],
)
async def test_every_field_is_kept(bench: Bench, changes: dict[str, object]) -> None:
    await bench.store.create(record(**changes))
    assert await bench.store.load("s-1") == record(**changes)


async def test_an_id_in_use_is_refused_and_untouched(bench: Bench) -> None:
    await bench.store.create(RECORD)
    with pytest.raises(SessionExistsError, match="s-1"):
        await bench.store.create(record(prompt=(9,)))
    assert await bench.store.load("s-1") == RECORD


async def test_a_session_that_the_store_lost_is_restored_as_new(bench: Bench) -> None:
    await bench.store.restore(record(epoch=3, tokens=(5, 6), tenant="a", presentation=b"\0x"))
    assert await bench.store.load("s-1") == record(epoch=3, tokens=(5, 6), tenant="a", presentation=b"\0x")
    assert await kinds(bench, commit(2, 7), commit(2, 7, epoch=3)) == [StaleEpochError, None]


@pytest.mark.parametrize("held", [(), (5,), (5, 6), (5, 6, 7)])
async def test_a_restore_takes_an_older_epoch_over_and_the_longer_tokens_stay(
    bench: Bench, held: tuple[int, ...]
) -> None:
    await bench.store.create(record(tokens=held))
    await bench.store.restore(record(epoch=2, tokens=(5, 6)))
    assert await bench.store.load("s-1") == record(epoch=2, tokens=max(held, (5, 6), key=len))
    assert await kinds(bench, commit(len(held), 9)) == [StaleEpochError]


@pytest.mark.parametrize("held", [2, 3])
async def test_a_restore_never_takes_an_epoch_that_is_as_high(bench: Bench, held: int) -> None:
    await bench.store.create(record(epoch=held, tokens=(5,)))
    with pytest.raises(StaleEpochError, match=f"belongs to epoch {held}, this write has epoch 2"):
        await bench.store.restore(record(epoch=2, tokens=(5, 6)))
    assert await bench.store.load("s-1") == record(epoch=held, tokens=(5,))


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": (9,)},
        {"tenant": "somebody else"},
        {"cache_salt": "another"},
        {"presentation": b"another"},
        {"sampling": SamplingParams(seed=1)},
        {"model": "another"},
    ],
)
async def test_a_restore_never_takes_another_session(bench: Bench, changes: dict[str, object]) -> None:
    await bench.store.create(RECORD)
    with pytest.raises(StaleEpochError, match="another prompt or other parameters"):
        await bench.store.restore(record(epoch=9, **changes))
    assert await bench.store.load("s-1") == RECORD


@pytest.mark.parametrize("tokens", [(5, 7), (4,), (5, 7, 8)])
@pytest.mark.parametrize("finish", [None, FinishReason.STOP])
async def test_of_two_owners_that_drew_other_tokens_the_younger_ones_stay(
    bench: Bench, tokens: tuple[int, ...], finish: FinishReason | None
) -> None:
    await bench.store.create(record(tokens=(5, 6), finish_reason=finish))  # by the older one, after a flush
    await bench.store.restore(record(epoch=2, tokens=tokens))
    assert await bench.store.load("s-1") == record(epoch=2, tokens=tokens)
    assert await kinds(bench, commit(2, 8), commit(len(tokens), 9, epoch=2)) == [StaleEpochError, None]
    assert await bench.store.load("s-1") == record(epoch=2, tokens=(*tokens, 9))


async def test_a_finished_session_is_not_restored(bench: Bench) -> None:
    await bench.store.create(record(tokens=(5,), finish_reason=FinishReason.STOP))
    with pytest.raises(ProtocolError, match="finished already"):
        await bench.store.restore(record(epoch=2, tokens=(5, 6)))
    assert await bench.store.load("s-1") == record(tokens=(5,), finish_reason=FinishReason.STOP)


async def test_a_frozen_owner_that_thaws_is_fenced_by_the_restored_one(bench: Bench) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5)])
    await bench.store.delete("s-1")  # as a flush does
    await bench.store.restore(record(epoch=2, tokens=(5, 6)))
    assert await kinds(bench, commit(1, 6), commit(2, 7, epoch=2)) == [StaleEpochError, None]
    for late in (record(tokens=(5,)), record(tokens=(5, 6, 7, 8))):  # it writes its session anew
        with pytest.raises(SessionExistsError):
            await bench.store.create(late)
        with pytest.raises(StaleEpochError):
            await bench.store.restore(late)
    assert await bench.store.load("s-1") == record(epoch=2, tokens=(5, 6, 7))


async def test_the_restored_owner_wins_also_where_the_frozen_one_thawed_first(bench: Bench) -> None:
    await bench.store.create(record(tokens=(5, 6, 7)))  # written anew by the old owner, after a flush
    assert await kinds(bench, commit(2, 7, epoch=2), commit(3, 8)) == [None, StaleEpochError]
    assert await bench.store.load("s-1") == record(epoch=2, tokens=(5, 6, 7))


async def test_unknown_sessions(bench: Bench) -> None:
    with pytest.raises(SessionNotFoundError, match="s-1"):
        await bench.store.load("s-1")
    with pytest.raises(SessionNotFoundError):
        await bench.store.claim("s-1")
    with pytest.raises(SessionNotFoundError):
        await bench.store.truncate("s-1", 1, 0, FinishReason.STOP)
    assert await kinds(bench, commit(0, 5)) == [SessionNotFoundError]
    await bench.store.delete("s-1")
    with pytest.raises(SessionNotFoundError):
        await bench.store.load("s-1")


async def test_a_claim_raises_the_epoch_and_fences_the_owner_before(bench: Bench) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5, 6)])
    assert await bench.store.claim("s-1") == record(epoch=2, tokens=(5, 6))
    assert await kinds(bench, commit(2, 7)) == [StaleEpochError]
    with pytest.raises(StaleEpochError, match="epoch 2"):
        await bench.store.truncate("s-1", 1, 0, FinishReason.STOP)
    assert await kinds(bench, commit(2, 7, epoch=2)) == [None]
    assert await bench.store.load("s-1") == record(epoch=2, tokens=(5, 6, 7))


async def test_concurrent_claims_get_different_epochs(bench: Bench) -> None:
    await bench.store.create(RECORD)
    claims = await asyncio.gather(*(bench.store.claim("s-1") for _ in range(20)))
    assert sorted(claim.epoch for claim in claims) == list(range(2, 22))


async def test_a_higher_epoch_takes_over_a_store_that_lost_a_claim(bench: Bench) -> None:
    await bench.store.create(RECORD)
    assert await kinds(bench, commit(0, 5, epoch=3), commit(1, 6)) == [None, StaleEpochError]
    assert await bench.store.load("s-1") == record(epoch=3, tokens=(5,))
    with pytest.raises(StaleEpochError, match="belongs to epoch 3, this write has epoch 2"):
        await bench.store.truncate("s-1", 2, 0, FinishReason.STOP)
    await bench.store.truncate("s-1", 4, 0, FinishReason.STOP)
    assert await bench.store.load("s-1") == record(epoch=4, finish_reason=FinishReason.STOP)


async def test_a_write_with_a_higher_epoch_that_is_refused_takes_nothing_over(bench: Bench) -> None:
    await bench.store.create(record(tokens=(5,)))
    refused = await kinds(bench, commit(2, 7, epoch=2), commit(0, 9, epoch=2))
    assert refused == [ProtocolError, ProtocolError]
    with pytest.raises(ProtocolError):
        await bench.store.truncate("s-1", 2, 2, FinishReason.STOP)
    assert await bench.store.load("s-1") == record(tokens=(5,))


async def test_one_call_writes_many_sessions_and_refuses_one_by_one(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        await bench.store.create(record(name))
    await bench.store.claim("b")
    results = await bench.store.append(
        [
            commit(0, 5, session_id="a"),
            commit(0, 5, session_id="b"),
            commit(0, 5, session_id="nobody"),
            commit(1, 6, session_id="a"),
            commit(3, 5, session_id="c"),
            commit(0, 8, session_id="c"),
        ]
    )
    expected = [None, StaleEpochError, SessionNotFoundError, None, ProtocolError, None]
    assert [None if result is None else type(result) for result in results] == expected
    assert "holds 0 tokens, this write builds on 3" in str(results[4])
    assert (await bench.store.load("a")).tokens == (5, 6)
    assert (await bench.store.load("b")).tokens == ()
    assert (await bench.store.load("c")).tokens == (8,)


async def test_nothing_to_append(bench: Bench) -> None:
    assert await bench.store.append([]) == []


async def test_the_same_commit_again_changes_nothing(bench: Bench) -> None:
    await bench.store.create(RECORD)
    commits = [commit(0, 5, 6), commit(2, 7, finish=FinishReason.STOP)]
    assert await kinds(bench, *commits) == [None, None]
    assert await kinds(bench, *commits) == [None, None]
    assert await bench.store.load("s-1") == record(tokens=(5, 6, 7), finish_reason=FinishReason.STOP)


async def test_a_retry_that_grew_writes_what_is_new(bench: Bench) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5, 6)])
    assert await kinds(bench, commit(0, 5, 6, 7), commit(1, 6, 7, 8)) == [None, None]
    assert (await bench.store.load("s-1")).tokens == (5, 6, 7, 8)


@pytest.mark.parametrize("wrong", [commit(0, 5, 9), commit(1, 9), commit(0, 9, 6, 7), commit(1, 9, 7)])
async def test_committed_tokens_are_final(bench: Bench, wrong: object) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5, 6)])
    assert await kinds(bench, wrong) == [ProtocolError]
    assert (await bench.store.load("s-1")).tokens == (5, 6)


async def test_nothing_follows_the_end(bench: Bench) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5, finish=FinishReason.LENGTH)])
    refused = await kinds(bench, commit(1, 6), commit(1, finish=FinishReason.STOP))
    assert refused == [ProtocolError, ProtocolError]
    assert await bench.store.load("s-1") == record(tokens=(5,), finish_reason=FinishReason.LENGTH)


async def test_an_old_commit_cannot_end_a_session_that_went_on(bench: Bench) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5, 6)])
    assert await kinds(bench, commit(0, 5, finish=FinishReason.STOP)) == [ProtocolError]
    assert (await bench.store.load("s-1")).finish_reason is None


async def test_an_end_without_tokens(bench: Bench) -> None:
    await bench.store.create(RECORD)
    assert await kinds(bench, commit(0, finish=FinishReason.CANCELLED)) == [None]
    assert await bench.store.load("s-1") == record(finish_reason=FinishReason.CANCELLED)


async def test_ids_that_do_not_fit_are_refused_alone(bench: Bench) -> None:
    await bench.store.create(RECORD)
    assert await kinds(bench, commit(0, 2**31), commit(0, 5)) == [ProtocolError, None]
    with pytest.raises(ProtocolError, match="32 bits"):
        await bench.store.create(record("s-2", prompt=(2**31,)))


@pytest.mark.parametrize("length", [0, 1, 3])
async def test_truncate_keeps_the_start_and_finishes(bench: Bench, length: int) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5, 6, 7, finish=FinishReason.LENGTH)])
    for _ in range(2):  # again changes nothing
        await bench.store.truncate("s-1", 1, length, FinishReason.STOP)
        kept = record(tokens=(5, 6, 7)[:length], finish_reason=FinishReason.STOP)
        assert await bench.store.load("s-1") == kept


@pytest.mark.parametrize("before", list(FinishReason))
@pytest.mark.parametrize("after", [FinishReason.STOP, FinishReason.CANCELLED])
async def test_truncate_ends_a_finished_session_anew(
    bench: Bench, before: FinishReason, after: FinishReason
) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5, 6, 7, finish=before)])
    await bench.store.truncate("s-1", 1, 2, after)
    with pytest.raises(ProtocolError):
        await bench.store.truncate("s-1", 1, 3, before)
    assert await kinds(bench, commit(2, 8)) == [ProtocolError]
    assert await bench.store.load("s-1") == record(tokens=(5, 6), finish_reason=after)


async def test_truncate_cannot_keep_what_was_never_written(bench: Bench) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5)])
    with pytest.raises(ProtocolError, match="holds 1 tokens, this write builds on 2"):
        await bench.store.truncate("s-1", 1, 2, FinishReason.STOP)
    assert await bench.store.load("s-1") == record(tokens=(5,))


async def test_a_deleted_id_can_be_used_again(bench: Bench) -> None:
    await bench.store.create(RECORD)
    await bench.store.append([commit(0, 5)])
    await bench.store.delete("s-1")
    await bench.store.create(RECORD)
    assert await bench.store.load("s-1") == RECORD


async def test_sessions_expire_after_their_last_write(bench: Bench) -> None:
    writes = [
        lambda: bench.store.append([commit(0, 5)]),
        lambda: bench.store.append([commit(0, 5)]),
        lambda: bench.store.claim("s-1"),
        lambda: bench.store.truncate("s-1", 2, 1, FinishReason.STOP),
    ]
    await bench.store.create(RECORD)
    for write in writes:
        await bench.pass_time("s-1", TTL_S - 10)
        await write()
    await bench.pass_time("s-1", TTL_S - 10)
    assert (await bench.store.load("s-1")).tokens == (5,)
    await bench.pass_time("s-1", 11)  # reading did not prolong it
    with pytest.raises(SessionNotFoundError):
        await bench.store.load("s-1")
    assert await kinds(bench, commit(1, 6, epoch=2)) == [SessionNotFoundError]


async def test_a_refused_write_prolongs_nothing(bench: Bench) -> None:
    await bench.store.create(RECORD)
    await bench.pass_time("s-1", TTL_S - 10)
    await bench.store.append([commit(0, 5, epoch=0), commit(3, 5)])
    with pytest.raises(StaleEpochError):
        await bench.store.restore(RECORD)
    await bench.pass_time("s-1", 11)
    with pytest.raises(SessionNotFoundError):
        await bench.store.load("s-1")


async def test_long_sessions(bench: Bench) -> None:
    prompt, tokens = tuple(range(50_000)), tuple(range(20_000))
    await bench.store.create(record(prompt=prompt))
    await bench.store.append([commit(base, *tokens[base : base + 1000]) for base in range(0, 20_000, 1000)])
    assert await bench.store.load("s-1") == record(prompt=prompt, tokens=tokens)


async def test_ping_and_close(bench: Bench) -> None:
    await bench.store.ping()
    await bench.store.close()
