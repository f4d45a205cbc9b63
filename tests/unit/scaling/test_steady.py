"""Bounds and delays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.scaling.observation import Why, Wish
from outrider.scaling.settings import PoolScaling
from outrider.scaling.steady import Hold, needed, steady

SETTINGS = PoolScaling(up_delay_s=5, down_delay_s=60)


def follow(wishes: list[tuple[float, int]], target: int, lowest: int = 1, highest: int = 9) -> list[int]:
    """The numbers that come of wishes at given times."""
    numbers, hold = [], Hold()
    for now, count in wishes:
        target, hold = steady(Wish(count, Why.SESSIONS, ""), target, lowest, highest, SETTINGS, hold, now)
        numbers.append(target)
    return numbers


@pytest.mark.parametrize(
    ("target", "wishes", "numbers"),
    [
        pytest.param(2, [(0, 2), (99, 2)], [2, 2], id="nothing wanted"),
        pytest.param(1, [(0, 3), (4, 3), (5, 3)], [1, 1, 3], id="more, after the delay"),
        pytest.param(1, [(0, 3), (5, 4)], [1, 4], id="more: as many as are wanted then"),
        pytest.param(1, [(0, 3), (4, 1), (5, 3), (9, 3)], [1, 1, 1, 1], id="a wish that stops starts anew"),
        pytest.param(3, [(0, 1), (59, 1), (60, 1)], [3, 3, 1], id="fewer, after the longer delay"),
        pytest.param(
            5, [(0, 1), (30, 3), (60, 1), (90, 1)], [5, 5, 3, 1], id="fewer: the most wanted within the delay"
        ),
        pytest.param(
            3, [(0, 1), (50, 3), (60, 1), (119, 1)], [3] * 4, id="fewer: a wish that stops starts anew"
        ),
        pytest.param(3, [(0, 1), (50, 4), (55, 4)], [3, 3, 4], id="from fewer to more"),
        pytest.param(1, [(0, 99), (5, 99)], [1, 9], id="never over the bound"),
        pytest.param(12, [(0, 12)], [9], id="bounds need no delay: over"),
        pytest.param(0, [(0, 0)], [1], id="bounds need no delay: under"),
    ],
)
def test_numbers(target: int, wishes: list[tuple[float, int]], numbers: list[int]) -> None:
    assert follow(wishes, target) == numbers


def test_from_none_the_first_ones_come_at_once() -> None:
    assert follow([(0, 2)], target=0, lowest=0) == [2]


def test_what_was_awaited_already_is_done_at_once() -> None:
    wish = Wish(0, Why.NOT_WORTH, "", at_once=True)
    assert steady(wish, 5, 0, 9, SETTINGS, Hold(), 0) == (0, Hold())


@given(
    st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 20)), min_size=1, max_size=60),
    st.integers(0, 20),
    st.integers(0, 5),
    st.integers(0, 10),
)
def test_always_within_bounds(steps: list[tuple[float, int]], target: int, lowest: int, more: int) -> None:
    now, wishes = 0.0, []
    for seconds, count in steps:
        now += seconds
        wishes.append((now, count))
    assert all(lowest <= one <= lowest + more for one in follow(wishes, target, lowest, lowest + more))


@given(st.floats(0, 1e6), st.floats(0.01, 1e3), st.integers(0, 100), st.floats(0, 0.9))
def test_a_number_that_was_reached_stays(amount: float, each: float, current: int, slack: float) -> None:
    count = needed(amount, each, current, slack)
    assert needed(amount, each, count, slack) == count
    assert count * each >= amount * (1 - 1e-6) - 1e-6
