"""Which drafters are worth asking, as a table of what they bring and how long they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest

from outrider.verifying.fusion.worth import SharedWorth, Worth

STEP_S = 0.030

Accepts = Mapping[str, int | Callable[[int], int]]
"""Tokens that each drafter gets accepted: always, or by the round."""


def rounds(
    worth: Worth, accepts: Accepts, waits: Mapping[str, float], count: int, *, first: int = 0
) -> list[frozenset[str]]:
    """Run rounds; who was asked in each."""
    asked = []
    for index in range(first, first + count):
        chosen = worth.choose(waits, STEP_S)
        got = {name: accepts[name] for name in sorted(chosen)}
        sample = {name: value(index) if callable(value) else value for name, value in got.items()}
        worth.learn(sample, everybody=chosen == frozenset(waits))
        asked.append(chosen)
    return asked


def alternately(index: int) -> int:
    return 4 * (index % 2)


def otherwise(index: int) -> int:
    return 4 * ((index + 1) % 2)


@pytest.mark.parametrize(
    ("accepts", "waits", "usual"),
    [
        # A slow one that adds nothing to a cheap one is not asked.
        ({"slow": 2, "cheap": 2}, {"slow": 0.020, "cheap": 0.001}, {"cheap"}),
        # It is if it brings much more ...
        ({"slow": 4, "cheap": 1}, {"slow": 0.010, "cheap": 0.001}, {"slow"}),
        # ... but not if it takes so long that plain steps would bring as much.
        ({"slow": 4, "cheap": 1}, {"slow": 0.200, "cheap": 0.001}, {"cheap"}),
        # Strong in different rounds: together.
        ({"a": alternately, "b": otherwise}, {"a": 0.005, "b": 0.005}, {"a", "b"}),
        ({"a": alternately, "b": alternately}, {"a": 0.005, "b": 0.006}, {"a"}),
        # Nobody gets anything: plain steps.
        ({"a": 0, "b": 0}, {"a": 0.005, "b": 0.001}, set()),
        ({"a": 1, "b": 0}, {"a": 0.040, "b": 0.050}, set()),
    ],
)
def test_who_is_asked_once_they_are_known(accepts: Accepts, waits: dict[str, float], usual: set[str]) -> None:
    asked = rounds(Worth(SharedWorth()), accepts, waits, 300)
    assert Counter(asked[150:]).most_common(1)[0][0] == frozenset(usual)
    assert Counter(asked[150:])[frozenset(usual)] >= 140


def test_all_are_tried_at_first_and_now_and_then_but_ever_less_often() -> None:
    waits = {"slow": 0.020, "cheap": 0.001}
    asked = rounds(Worth(SharedWorth()), {"slow": 1, "cheap": 3}, waits, 1000)
    assert asked[:3] == [frozenset(waits)] * 3
    trials = [index for index, chosen in enumerate(asked) if len(chosen) == 2]
    assert 3 < len(trials) < 30
    pauses = [after - before for before, after in pairwise(trials[3:])]
    assert pauses == sorted(pauses) and pauses[-1] < 110


def test_a_drafter_that_becomes_better_is_found_again() -> None:
    waits = {"a": 0.005, "b": 0.005}
    worth = Worth(SharedWorth())
    assert rounds(worth, {"a": 3, "b": 0}, waits, 200)[-1] == {"a"}
    asked = rounds(worth, {"a": 0, "b": 4}, waits, 2000)
    assert Counter(asked[-500:]).most_common(1)[0][0] == {"b"}


def test_a_new_session_begins_with_what_others_learned() -> None:
    shared, waits = SharedWorth(), {"slow": 0.020, "cheap": 0.001}
    for _ in range(30):
        rounds(Worth(shared), {"slow": 1, "cheap": 3}, waits, 20)
    asked = rounds(Worth(shared), {"slow": 1, "cheap": 3}, waits, 12)
    assert asked[3:] == [frozenset({"cheap"})] * 9
    assert shared.best(waits, STEP_S) == "cheap"


def test_a_session_that_differs_from_the_others_goes_its_own_way() -> None:
    shared, waits = SharedWorth(), {"a": 0.005, "b": 0.005}
    for _ in range(30):
        rounds(Worth(shared), {"a": 3, "b": 0}, waits, 20)
    asked = rounds(Worth(shared), {"a": 0, "b": 3}, waits, 600)
    assert Counter(asked[300:]).most_common(1)[0][0] == {"b"}


def test_one_that_is_away_is_not_chosen_and_one_that_comes_is_tried() -> None:
    worth = Worth(SharedWorth())
    alone = rounds(worth, {"a": 2}, {"a": 0.005}, 50)
    assert set(alone) == {frozenset({"a"})}
    both = rounds(worth, {"a": 2, "b": 6}, {"a": 0.005, "b": 0.005}, 200)
    assert Counter(both[100:]).most_common(1)[0][0] == {"b"}


def test_a_drafter_among_many_is_found() -> None:
    waits = {f"d{index:02}": 0.005 for index in range(20)}
    accepts: Accepts = {name: 3 if name == "d07" else 0 for name in waits}
    asked = rounds(Worth(SharedWorth()), accepts, waits, 100)
    assert Counter(asked[50:]).most_common(1)[0][0] == {"d07"}


def test_it_is_a_function_of_what_it_was_told() -> None:
    def once() -> list[frozenset[str]]:
        accepts: Accepts = {"a": lambda i: (i * 7) % 5, "b": lambda i: (i * 3) % 4, "c": 1}
        return rounds(Worth(SharedWorth()), accepts, {"a": 0.01, "b": 0.004, "c": 0.0}, 400)

    assert once() == once()


def test_the_best_one_of_those_that_nobody_knows_is_the_first() -> None:
    assert SharedWorth().best({"b": 0.0, "a": 0.0}, STEP_S) == "b"
    assert SharedWorth().best({}, STEP_S) == ""


def test_a_trial_ends_although_one_can_never_be_asked() -> None:
    """It fails each time that it is opened, and opening it asks nothing."""
    waits, worth, asked = {"fails": 0.001, "slow": 0.020, "cheap": 0.001}, Worth(SharedWorth()), []
    for _ in range(300):
        chosen = worth.choose(waits, STEP_S)
        worth.learn(dict.fromkeys(sorted(chosen - {"fails"}), 2), everybody=False)
        asked.append(chosen)
    assert sum("slow" in chosen for chosen in asked) < 40


def test_what_all_sessions_learn_begins_as_a_plain_mean() -> None:
    shared = SharedWorth()
    for most in (0, 4, 2, 4):
        shared.learn({"a": most})
    assert shared.accepted[frozenset({"a"})] == pytest.approx(2.5)
