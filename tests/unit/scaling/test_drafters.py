"""How many drafters load wants, and what is learned of what they can do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.scaling.drafters import Ceiling, DrafterLoad, Lateness, each_holds, learn, wanted_drafters
from outrider.scaling.observation import Why
from outrider.scaling.settings import DrafterScaling

SETTINGS = DrafterScaling(
    target_use=0.5, slack=0.2, target_queued=4, max_late=0.1, min_asked=100, forget_s=600
)
IN_TIME = Lateness(1000, 10, 8)
LATE = Lateness(1000, 200, 8)


def load(sessions: float = 0, queued: float = 0, *, reporting: int = 1, silent: int = 0) -> DrafterLoad:
    return DrafterLoad(sessions, queued, capacity=20, reporting=reporting, silent=silent)


@pytest.mark.parametrize(
    ("what", "each", "late", "current", "count", "why"),
    [
        pytest.param(load(5), 0, IN_TIME, 0, 1, Why.NO_DATA, id="nothing known: one"),
        pytest.param(load(5), 0, IN_TIME, 3, 3, Why.NO_DATA, id="nothing known: as many as there are"),
        pytest.param(load(), 10, IN_TIME, 3, 1, Why.SESSIONS, id="no sessions: one stays until it is idle"),
        pytest.param(load(21), 10, IN_TIME, 1, 3, Why.SESSIONS, id="by sessions"),
        pytest.param(load(15, reporting=2), 10, IN_TIME, 3, 2, Why.SESSIONS, id="fewer, with slack"),
        pytest.param(load(19, reporting=3), 10, IN_TIME, 3, 3, Why.SESSIONS, id="not fewer without"),
        pytest.param(load(9, 9), 10, IN_TIME, 1, 3, Why.QUEUE, id="by queue"),
        pytest.param(load(2, 40), 10, IN_TIME, 1, 2, Why.QUEUE, id="never more than there are sessions"),
        pytest.param(load(8), 4, LATE, 1, 2, Why.LATE, id="late: what was learned says how many"),
        pytest.param(load(8, reporting=3), 10, LATE, 3, 3, Why.LATE, id="late: none goes"),
        pytest.param(
            load(1), 10, Lateness(1000, 900, 1), 2, 1, Why.SESSIONS, id="late by itself: more would not help"
        ),
        pytest.param(
            load(8), 10, Lateness(50, 50, 8), 1, 1, Why.SESSIONS, id="too few rounds to call it late"
        ),
        pytest.param(load(3, silent=1), 10, IN_TIME, 2, 2, Why.SILENT, id="none goes while one is silent"),
    ],
)
def test_wanted(what: DrafterLoad, each: float, late: Lateness, current: int, count: int, why: Why) -> None:
    wish = wanted_drafters(SETTINGS, what, each, late, current)
    assert (wish.count, wish.why) == (count, why)
    assert wish.reason
    assert "\n" not in wish.reason


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0.5, 50), st.integers(0, 50))
def test_more_load_never_wants_fewer(
    sessions: float, queued: float, more: float, each: float, now: int
) -> None:
    one = wanted_drafters(SETTINGS, load(sessions, queued), each, IN_TIME, now).count
    assert wanted_drafters(SETTINGS, load(sessions + more, queued), each, IN_TIME, now).count >= one
    assert wanted_drafters(SETTINGS, load(sessions, queued + more), each, IN_TIME, now).count >= one


def test_a_replica_that_is_late_gets_fewer_sessions() -> None:
    ceiling = learn(SETTINGS, None, LATE, now=0)
    assert ceiling == Ceiling(4, until=600)
    assert each_holds(SETTINGS, load(), ceiling, now=1) == 4


def test_a_little_late_takes_a_little_off() -> None:
    ceiling = learn(SETTINGS, None, Lateness(1000, 110, 8), now=0)
    assert ceiling is not None
    assert ceiling.sessions == pytest.approx(8 * 0.1 / 0.11)


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(IN_TIME, id="in time"),
        pytest.param(Lateness(99, 99, 8), id="too few rounds"),
        pytest.param(Lateness(1000, 900, 1), id="late with a single session: slow, not overloaded"),
    ],
)
def test_nothing_is_learned(late: Lateness) -> None:
    assert learn(SETTINGS, None, late, now=0) is None


def test_the_same_again_teaches_nothing_new() -> None:
    ceiling = learn(SETTINGS, None, LATE, now=0)
    assert learn(SETTINGS, ceiling, LATE, now=300) is ceiling


def test_more_sessions_in_time_raise_what_was_learned() -> None:
    ceiling = learn(SETTINGS, Ceiling(4, until=600), Lateness(1000, 10, 6), now=300)
    assert ceiling == Ceiling(6, until=600)


def test_what_was_learned_is_forgotten_and_each_time_later() -> None:
    ceiling = learn(SETTINGS, None, LATE, now=0)
    assert each_holds(SETTINGS, load(), ceiling, now=600) == 10
    ceiling = learn(SETTINGS, ceiling, LATE, now=600)
    assert ceiling == Ceiling(4, until=600 + 1200, times=2)
    ceiling = learn(SETTINGS, ceiling, LATE, now=1800)
    assert ceiling == Ceiling(4, until=1800 + 2400, times=3)
