"""The whole policy, on a cluster in arithmetic."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from outrider.scaling import Memory, Observation, Pool, ScalingSettings, Why, decide
from outrider.scaling.observation import VERIFIER
from tests.unit.scaling.simulated import Cluster, Kind

EAGLE, LOOKUP = "drafter-eagle", "drafter-lookup"
QUICK: dict[str, Any] = {
    "load_window_s": 3,
    "verifier": {"price": 1.0, "target_use": 0.5, "up_delay_s": 2, "down_delay_s": 20},
    "drafter": {
        "price": 0.2,
        "target_sessions": 8,
        "up_delay_s": 2,
        "down_delay_s": 20,
        "idle_s": 40,
        "min_asked": 50,
    },
    "worth": {"window_s": 20, "min_rounds": 100, "probe_s": 10, "retry_s": 60, "max_retry_s": 300},
}
"""A verifier is to have eight of its sixteen sessions."""


def settings(**changes: Any) -> ScalingSettings:
    given = {**QUICK}
    for name, value in changes.items():
        given[name] = {**given[name], **value} if isinstance(value, dict) else value
    return ScalingSettings.model_validate(given)


def cluster(sessions: Any = 8, **more: Any) -> Cluster:
    load = sessions if callable(sessions) else lambda now: float(sessions)
    chosen = {"settings": settings(), "kinds": {"eagle": Kind()}, "sessions": load} | more
    return Cluster(**chosen)


def steps(*levels: float, each_s: float = 100) -> Any:
    """A load that goes from level to level."""
    return lambda now: float(levels[min(len(levels) - 1, int((now - 1000) // each_s))])


def test_load_that_rises_and_falls_takes_replicas_along() -> None:
    world = cluster(steps(4, 24, 4)).run(300)
    for pool in (VERIFIER, EAGLE):
        numbers = world.numbers(pool)
        top = numbers.index(3)
        assert (numbers[0], max(numbers), numbers[-1]) == (1, 3, 1)
        assert numbers == sorted(numbers[:top]) + sorted(numbers[top:], reverse=True)  # up once, down once


def test_the_first_observations_change_nothing() -> None:
    empty = Observation(0, Pool(3, 1, 9, {"a": None, "b": None, "c": None}), {"eagle": Pool(2, 0, 9)})
    memory, decisions = decide(settings(), Memory(), empty)
    assert {name: one.replicas for name, one in decisions.items()} == {VERIFIER: 3, EAGLE: 2}
    for _ in range(100):
        memory, decisions = decide(settings(), memory, empty)
    assert {name: one.replicas for name, one in decisions.items()} == {VERIFIER: 3, EAGLE: 2}
    assert {one.wish.why for one in decisions.values()} == {Why.NO_DATA}


def test_speculation_that_does_not_pay_ends_and_is_tried_less_and_less_often() -> None:
    world = cluster(kinds={"eagle": Kind(accepted=0.1, slows=0.5)}).run(600)
    assert set(world.numbers(EAGLE)) == {0, 1}
    ends = [one for one in world.changes if one.pool == EAGLE and one.replicas == 0]
    assert {one.wish.why for one in ends} == {Why.NOT_WORTH}
    starts = [
        i
        for i, (old, new) in enumerate(zip(world.history, world.history[1:], strict=False))
        if old[EAGLE] < new[EAGLE]
    ]
    assert len(starts) >= 3
    assert starts[1] - starts[0] < starts[2] - starts[1]


def test_it_comes_back_when_drafts_have_become_good() -> None:
    world = cluster(kinds={"eagle": Kind(accepted=0.1, slows=0.5)}).run(60)
    assert world.targets[EAGLE] == 0
    world.kinds["eagle"].accepted = 2.0
    world.run(150)
    assert world.targets[EAGLE] == 1
    assert world.memory.baselines  # the speed without drafts was measured meanwhile
    assert world.decisions[EAGLE].wish.why is Why.SESSIONS


def test_it_comes_back_at_once_when_load_falls() -> None:
    world = cluster(steps(30, 5), bounds={VERIFIER: (1, 2)}, kinds={"eagle": Kind(accepted=0.1, slows=0.5)})
    world.settings = settings(worth={"retry_s": 1000, "max_retry_s": 1000})
    world.run(99)
    assert world.targets[EAGLE] == 0
    world.kinds["eagle"].accepted = 2.0
    world.run(60)
    assert world.targets[EAGLE] >= 1


def test_of_two_kinds_the_useless_one_goes_and_the_other_one_stays() -> None:
    world = cluster(kinds={"eagle": Kind(accepted=1.2), "lookup": Kind(accepted=0.02, slows=0.02)}).run(50)
    assert world.targets == {VERIFIER: 1, EAGLE: 1, LOOKUP: 0}
    assert [one.pool for one in world.changes] == [LOOKUP]


def test_a_cheap_kind_stays_where_a_dear_one_would_not() -> None:
    kinds = {"eagle": Kind(accepted=0.25, slows=0.05), "lookup": Kind(accepted=0.25, slows=0.05)}
    own = {"lookup": {**QUICK["drafter"], "price": 0.01}}
    world = cluster(
        kinds=kinds,
        settings=settings(drafter={"price": 0.8}).model_copy(
            update={"drafters": settings().model_validate({"drafters": own}).drafters}
        ),
    ).run(50)
    assert world.targets == {VERIFIER: 1, EAGLE: 0, LOOKUP: 1}


def test_worth_can_be_left_out() -> None:
    world = cluster(
        kinds={"eagle": Kind(accepted=0.0, slows=0.5)}, settings=settings(worth={"enabled": False})
    )
    assert world.run(200).numbers(EAGLE) == [1]


def test_drafters_that_are_late_get_company_and_keep_it() -> None:
    world = cluster(
        12, kinds={"eagle": Kind(accepted=3.0, in_time=5)}, settings=settings(drafter={"target_sessions": 20})
    )
    world.run(400)
    assert world.numbers(EAGLE)[0] == 1
    assert world.targets[EAGLE] * 5 >= 12
    assert sorted(world.numbers(EAGLE)) == world.numbers(EAGLE)  # none went in between


def test_without_sessions_drafters_go_and_come_back_with_the_first_one() -> None:
    world = cluster(steps(16, 0, 16)).run(100)
    assert world.targets[EAGLE] == 2
    world.run(95)
    assert world.targets[EAGLE] == 0
    assert world.decisions[EAGLE].wish.why is Why.IDLE
    world.run(20)
    assert world.targets[EAGLE] == 2


def test_a_lower_bound_keeps_drafters_that_do_not_pay() -> None:
    world = cluster(kinds={"eagle": Kind(accepted=0.0, slows=0.5)}, bounds={EAGLE: (1, 4)}).run(200)
    assert world.numbers(EAGLE) == [1]
    world.kinds["eagle"].accepted = 2.0
    world.run(60)
    assert world.decisions[EAGLE].wish.why is Why.SESSIONS


def test_a_silent_verifier_keeps_the_others_for_a_while() -> None:
    world = cluster(24).run(60)
    assert world.targets[VERIFIER] == 3
    world.silenced = {world.up(VERIFIER)[0]}
    world.sessions = lambda now: 2.0
    world.run(14)
    assert world.decisions[VERIFIER].wish.why is Why.SILENT
    assert world.targets[VERIFIER] == 3
    world.run(40)
    assert world.targets[VERIFIER] == 1


def test_drafters_that_are_in_use_stay_when_no_verifier_tells_anything() -> None:
    world = cluster(16).run(60)
    world.silenced = set(world.up(VERIFIER))
    world.run(100)
    assert world.targets[EAGLE] == 2


def test_a_stuck_verifier_is_made_up_for() -> None:
    world = cluster(8).run(20)
    assert world.numbers(VERIFIER) == [1]
    world.frozen = {world.up(VERIFIER)[0]}
    world.run(40)
    assert world.targets[VERIFIER] == 2
    assert "1 stuck" in world.decisions[VERIFIER].wish.reason


def test_a_verifier_that_starts_anew_is_no_reason_for_anything() -> None:
    world = cluster().run(60)
    world.restart(world.up(VERIFIER)[0])
    world.run(60)
    assert world.changes == []


def test_decisions_explain_themselves_in_one_line() -> None:
    world = cluster(steps(4, 24, 0), kinds={"eagle": Kind(), "lookup": Kind(accepted=0.0)}).run(300)
    assert {one.pool for one in world.changes} == {VERIFIER, EAGLE, LOOKUP}
    for one in world.changes:
        text = str(one)
        assert text.startswith(f"{one.pool} {one.before} -> {one.replicas}: ")
        assert "\n" not in text
        assert len(text) < 250


@hypothesis_settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 60), st.floats(0, 3), st.floats(0, 0.6), st.integers(1, 60))
def test_a_constant_load_settles(sessions: int, accepted: float, slows: float, in_time: int) -> None:
    kinds = {"eagle": Kind(accepted=accepted, slows=slows, in_time=in_time)}
    world = cluster(sessions, kinds=kinds).run(150)
    before = world.numbers(VERIFIER)
    assert sorted(before) == before  # up to what is needed, and never back
    settled = dict(world.targets)
    trials = world.memory.kinds["eagle"].trial.retry_s
    world.run(150)
    assert world.targets[VERIFIER] == settled[VERIFIER]
    if not trials and world.memory.kinds["eagle"].trial.retry_s == 0:  # a kind that pays
        assert {targets[EAGLE] for targets in world.history[-150:]} == {settled[EAGLE]}


@hypothesis_settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=8),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(0, 2),
)
def test_numbers_stay_within_bounds(levels: list[int], most: int, more: int, least: int) -> None:
    bounds = {VERIFIER: (1, most), EAGLE: (least, least + more + 1)}
    world = cluster(steps(*levels, each_s=20), bounds=bounds).run(20 * len(levels) + 40)
    for pool, (lowest, highest) in bounds.items():
        assert all(lowest <= targets[pool] <= highest for targets in world.history)


@hypothesis_settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.floats(0, 3))
def test_the_same_observations_give_the_same_decisions(levels: list[int], accepted: float) -> None:
    one, other = (
        cluster(steps(*levels, each_s=15), kinds={"eagle": Kind(accepted=accepted)}).run(90) for _ in range(2)
    )
    assert one.history == other.history
    assert [str(change) for change in one.changes] == [str(change) for change in other.changes]
