"""How many verifiers are wanted: a table of cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.scaling.observation import Why
from outrider.scaling.settings import VerifierScaling
from outrider.scaling.verifiers import VerifierLoad, wanted_verifiers

SETTINGS = VerifierScaling(target_use=0.5, slack=0.2, target_kv_use=0.8)
"""With a capacity of 20: ten sessions a verifier."""


def load(running: float = 0, waiting: float = 0, **more: float) -> VerifierLoad:
    return VerifierLoad(running, waiting, **({"capacity": 20.0, "reporting": 1} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "current", "count", "why"),
    [
        pytest.param(load(reporting=0), 3, 3, Why.NO_DATA, id="nobody has reported"),
        pytest.param(load(5, capacity=0), 3, 3, Why.NO_DATA, id="capacity is not known"),
        pytest.param(load(), 1, 1, Why.SESSIONS, id="nothing to do"),
        pytest.param(load(), 4, 1, Why.SESSIONS, id="nothing to do for many"),
        pytest.param(load(10), 1, 1, Why.SESSIONS, id="at its target"),
        pytest.param(load(10.5), 1, 2, Why.SESSIONS, id="a little over it"),
        pytest.param(load(10, 1), 1, 2, Why.SESSIONS, id="who waits counts as much"),
        pytest.param(load(20, 60), 1, 8, Why.SESSIONS, id="a long queue: all at once"),
        pytest.param(load(9, reporting=2), 2, 2, Why.SESSIONS, id="one would do, but barely"),
        pytest.param(load(8, reporting=2), 2, 1, Why.SESSIONS, id="one would do, with slack"),
        pytest.param(load(3, kv_usage=0.9), 1, 2, Why.KV, id="KV is full before the places are"),
        pytest.param(load(3, kv_usage=0.7, reporting=2), 2, 2, Why.KV, id="KV keeps what sessions would not"),
        pytest.param(load(15, stuck=1, reporting=2), 2, 3, Why.SESSIONS, id="a stuck one does not count"),
        pytest.param(load(5, stuck=1, reporting=1), 1, 2, Why.SESSIONS, id="the only one is stuck"),
        pytest.param(load(3, silent=1, reporting=1), 2, 2, Why.SILENT, id="none goes while one is silent"),
        pytest.param(
            load(25, silent=1, reporting=1), 2, 3, Why.SESSIONS, id="more may come while one is silent"
        ),
    ],
)
def test_wanted(what: VerifierLoad, current: int, count: int, why: Why) -> None:
    wish = wanted_verifiers(SETTINGS, what, current)
    assert (wish.count, wish.why) == (count, why)
    assert wish.reason
    assert "\n" not in wish.reason


def test_sessions_of_a_replica_can_be_set() -> None:
    settings = VerifierScaling(target_sessions=4)
    assert wanted_verifiers(settings, load(9), 1).count == 3


amounts = st.floats(0, 1e4)


@given(amounts, amounts, amounts, st.integers(1, 50))
def test_more_load_never_wants_fewer(running: float, more: float, kv: float, current: int) -> None:
    one = wanted_verifiers(SETTINGS, load(running, kv_usage=kv), current).count
    assert wanted_verifiers(SETTINGS, load(running + more, kv_usage=kv), current).count >= one
    assert wanted_verifiers(SETTINGS, load(running, more, kv_usage=kv), current).count >= one
    assert wanted_verifiers(SETTINGS, load(running, kv_usage=kv + more), current).count >= one


@given(amounts, amounts, st.integers(1, 50))
def test_what_was_wanted_is_enough_and_stays(running: float, kv: float, current: int) -> None:
    what = load(running, kv_usage=kv)
    count = wanted_verifiers(SETTINGS, what, current).count
    assert running <= 10 * count * (1 + 1e-6)
    assert wanted_verifiers(SETTINGS, what, count).count == count
