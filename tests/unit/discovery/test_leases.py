"""The rules of leases in memory, by a clock that the test moves."""

from __future__ import annotations

import pytest

from outrider.discovery.leases import KEPT_LEASES, Leases

LEASE_S = 3.0


class Clock:
    """Both clocks of Leases."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> Leases:
    return Leases(clock, clock)


def enter(leases: Leases, field: str, instance: str, number: str = "") -> str:
    """Enter or renew, which must go well; the number."""
    entered, value = leases.enter(field, LEASE_S, instance, number, f"body of {instance}")
    assert entered, value
    return value


def alive(leases: Leases) -> list[str]:
    return leases.read()[2]


def test_a_lease_holds_to_its_end_and_not_a_moment_longer(leases: Leases, clock: Clock) -> None:
    enter(leases, "a", "a1")
    clock.now += LEASE_S - 0.001
    enter(leases, "b", "b1")
    assert alive(leases) == ["body of a1", "body of b1"]
    clock.now += 0.001
    enter(leases, "b", "b1", "1")
    assert alive(leases) == ["body of b1"]


def test_renewing_makes_it_last(leases: Leases, clock: Clock) -> None:
    number = enter(leases, "a", "a1")
    for _ in range(10):
        clock.now += LEASE_S - 0.1
        assert enter(leases, "a", "a1", number) == number
        assert alive(leases) == ["body of a1"]


def test_if_nobody_could_renew_all_stay_and_it_says_so(leases: Leases, clock: Clock) -> None:
    number = enter(leases, "a", "a1")
    enter(leases, "b", "b1")
    clock.now += 100.0  # as if this process had stood still
    assert leases.read()[1:] == (True, ["body of a1", "body of b1"])
    enter(leases, "a", "a1", number)
    assert leases.read()[1:] == (False, ["body of a1"])


def test_a_younger_instance_takes_the_place_of_an_older_one_which_then_is_refused(leases: Leases) -> None:
    old = enter(leases, "a", "a1")
    young = enter(leases, "a", "a2")
    assert int(young) > int(old)
    assert leases.enter("a", LEASE_S, "a1", old, "") == (False, "a2")
    leases.withdraw("a", "a1")
    assert alive(leases) == ["body of a2"]
    leases.withdraw("a", "a2")
    assert alive(leases) == []


def test_when_the_younger_one_has_died_the_older_one_may_come_back(leases: Leases, clock: Clock) -> None:
    old = enter(leases, "a", "a1")
    enter(leases, "a", "a2")
    clock.now += LEASE_S
    enter(leases, "a", "a1", old)
    assert alive(leases) == ["body of a1"]


def test_the_next_process_that_keeps_leases_gives_higher_numbers(leases: Leases, clock: Clock) -> None:
    old = enter(leases, "a", "a1")
    clock.now += 1.0
    fresh = Leases(clock, clock)
    enter(fresh, "a", "a2")
    assert fresh.enter("a", LEASE_S, "a1", old, "") == (False, "a2")
    assert fresh.read()[0] != leases.read()[0]


def test_those_who_died_long_ago_are_swept_out(leases: Leases, clock: Clock) -> None:
    enter(leases, "a", "a1")
    clock.now += LEASE_S * (KEPT_LEASES + 1) + 0.1
    enter(leases, "b", "b1")
    assert set(leases._entries) == {"b"}
