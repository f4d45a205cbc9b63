"""Writes that wait: what goes as one, and what is given up when there are too many."""

from __future__ import annotations

import pytest

from outrider.core.params import SamplingParams, StopParams
from outrider.core.sessions import Commit, FinishReason, SessionRecord
from outrider.sessions.pending import Create, PendingWrites, Restore, Truncate, Write


def record(name: str = "a", *tokens: int, prompt: int = 0, epoch: int = 1) -> SessionRecord:
    return SessionRecord(name, (7,) * prompt, SamplingParams(), StopParams(5), epoch=epoch, tokens=tokens)


def commit(base: int, *tokens: int, epoch: int = 1, finish: FinishReason | None = None) -> Commit:
    return Commit("a", epoch, base, tokens, finish)


def added(*writes: Write, limit: int = 100, max_tokens: int = 1000) -> PendingWrites:
    pending = PendingWrites(limit, max_tokens=max_tokens)
    for write in writes:
        pending.add(write)
    return pending


@pytest.mark.parametrize("kind", [Create, Restore])
def test_a_session_and_the_commits_that_follow_go_as_one(kind: type[Create] | type[Restore]) -> None:
    pending = added(kind(record("a", 1)), commit(1, 2), commit(2, 3, finish=FinishReason.STOP))
    ((queue, write, count),) = pending.batch(10)
    assert isinstance(write, kind)
    assert (write.record.tokens, write.record.finish_reason, count) == ((1, 2, 3), FinishReason.STOP, 3)
    pending.done(queue, count)
    assert len(pending) == 0


@pytest.mark.parametrize(
    "second",
    [
        commit(2, 9),
        commit(0, 9),
        commit(1, 9, epoch=2),
        Truncate("a", 1, 0, FinishReason.STOP),
        Create(record()),
    ],
)
def test_what_does_not_follow_on_goes_later(second: Write) -> None:
    for first in (commit(0, 1), Create(record("a", 1))):
        ((queue, write, count),) = (pending := added(first, second)).batch(10)
        assert (write, count) == (first, 1)
        pending.done(queue, 1)
        assert pending.batch(10)[0][1] == second


def test_nothing_joins_an_end() -> None:
    end = commit(0, 1, finish=FinishReason.STOP)
    assert added(end, commit(1, 2)).batch(10)[0][1:] == (end, 1)


def test_tokens_are_bounded_as_well_as_writes() -> None:
    pending = added(Create(record("old", prompt=60)), Create(record("a", prompt=30)), max_tokens=100)
    assert pending.add(commit(0, *range(20))) == 1
    assert pending.any_lost and pending.mendable == ("old",)
    assert [write.session_id for _, write, _ in pending.batch(10)] == ["a"]
    ((queue, _, count),) = pending.batch(10)
    pending.done(queue, count)
    assert pending.add(Create(record("b", prompt=100))) == 0  # what was done takes no room


def test_one_write_is_kept_however_large_it_is() -> None:
    pending = added(Create(record("a", prompt=5000)), max_tokens=100)
    assert len(pending) == 1 and not pending.any_lost


def test_what_is_postponed_goes_after_the_others() -> None:
    pending = added(Create(record("a")), Create(record("b")), Create(record("c")))
    (first, _, _), *_ = pending.batch(1)
    pending.postpone(first)
    assert [write.session_id for _, write, _ in pending.batch(2)] == ["b", "c"]
    pending.forget("a")
    pending.postpone(first)
    assert len(pending) == 2
