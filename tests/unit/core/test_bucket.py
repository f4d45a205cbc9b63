"""The bucket, to the last token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.bucket import Bucket


class Clock:
    """Says what it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_it_is_full_at_first_and_never_more_than_full(clock: Clock) -> None:
    bucket = Bucket(60, clock=clock)
    assert bucket.level == 60
    clock.now += 100
    assert bucket.level == 60


def test_it_fills_at_its_rate(clock: Clock) -> None:
    bucket = Bucket(120, clock=clock)
    bucket.take(120)
    for second in range(1, 61):
        clock.now += 1
        assert bucket.level == 2 * second
    clock.now += 1
    assert bucket.level == 120


def test_the_wait_is_exact_and_ends_when_it_says(clock: Clock) -> None:
    bucket = Bucket(60, clock=clock)
    bucket.take(60)
    assert bucket.wait_s(10) == 10
    clock.now += 9.5
    assert bucket.wait_s(10) == 0.5
    clock.now += 0.5
    assert bucket.wait_s(10) == 0


def test_what_is_larger_than_the_bucket_waits_until_it_is_full_and_is_paid_back(clock: Clock) -> None:
    bucket = Bucket(60, clock=clock)
    bucket.take(1)
    assert bucket.wait_s(600) == 1
    clock.now += 1
    assert bucket.wait_s(600) == 0
    bucket.take(600)
    assert bucket.level == -540
    assert bucket.wait_s(1) == 541


def test_what_is_given_back_is_there_and_never_overflows(clock: Clock) -> None:
    bucket = Bucket(60, clock=clock)
    bucket.take(60)
    bucket.give_back(45)
    assert bucket.level == 45 and bucket.wait_s(45) == 0 and bucket.wait_s(46) == 1
    bucket.give_back(1000)
    assert bucket.level == 60


def test_it_is_taken_only_if_it_is_there(clock: Clock) -> None:
    bucket = Bucket(10, period_s=5, clock=clock)
    assert [bucket.try_take(4) for _ in range(3)] == [True, True, False]
    assert bucket.level == 2
    clock.now += 1
    assert bucket.try_take(4) and bucket.level == 0


def test_another_rate_keeps_what_is_missing(clock: Clock) -> None:
    bucket = Bucket(60, clock=clock)
    bucket.take(50)
    bucket.resize(100)
    assert bucket.level == 50
    bucket.resize(20)
    assert bucket.level == -30
    assert bucket.wait_s(1) == 31 * 60 / 20


@given(
    rate=st.integers(1, 10_000),
    amounts=st.lists(st.tuples(st.integers(1, 20_000), st.floats(0, 30)), max_size=30),
)
def test_over_any_time_no_more_is_taken_than_the_rate_allows(
    rate: int, amounts: list[tuple[int, float]]
) -> None:
    """Whoever takes only what there is no wait for gets at most rate x time, a full bucket, one overdraft."""
    clock = Clock()
    bucket, taken = Bucket(rate, clock=clock), 0
    for amount, pause in amounts:
        clock.now += pause
        if bucket.wait_s(amount) == 0:
            bucket.take(amount)
            allowed = rate * (1 + (clock.now - 1000) / 60)
            assert taken <= allowed + 1e-3
            taken += amount


@given(rate=st.integers(1, 10_000), before=st.integers(0, 20_000), amount=st.integers(1, 20_000))
def test_after_the_wait_there_is_none(rate: int, before: int, amount: int) -> None:
    clock = Clock()
    bucket = Bucket(rate, clock=clock)
    bucket.take(before)
    clock.now += bucket.wait_s(amount)
    assert bucket.wait_s(amount) < 1e-6
