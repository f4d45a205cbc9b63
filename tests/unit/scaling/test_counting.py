"""Counters of replicas that come, go, start anew and fall silent."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outrider.scaling import Observation, Pool
from outrider.scaling.counting import drafters_since, sample, verifiers_since
from outrider.scaling.signals import DrafterCounts, DrafterSignals, VerifierSignals


def told(now: float, **verifiers: VerifierSignals | None) -> Observation:
    return Observation(
        now,
        Pool(1, 1, 9, verifiers),
        {"eagle": Pool(1, 0, 9, {"d": DrafterSignals(sessions=4, queued=2)})},
    )


def signals(tokens: float, running: float = 2) -> VerifierSignals:
    seen = DrafterCounts(asked=tokens, missed=tokens / 4, accepted=tokens / 2)
    return VerifierSignals(running=running, tokens=tokens, rounds=tokens / 2, drafters={"eagle": seen})


@pytest.mark.parametrize(
    ("before", "now", "tokens"),
    [
        pytest.param({"a": signals(10)}, {"a": signals(25)}, 15, id="it grew"),
        pytest.param({"a": signals(10)}, {"a": signals(10)}, 0, id="it did nothing"),
        pytest.param({"a": signals(10)}, {"a": signals(4)}, 4, id="it started anew"),
        pytest.param({}, {"a": signals(1000)}, 0, id="it is new: what it did before is not known"),
        pytest.param({"a": None}, {"a": signals(1000)}, 0, id="it was silent"),
        pytest.param({"a": signals(10)}, {"a": None}, 0, id="it is silent"),
        pytest.param({"a": signals(10)}, {}, 0, id="it is gone"),
        pytest.param(
            {"a": signals(10), "b": signals(0)}, {"a": signals(11), "b": signals(5)}, 6, id="two of them"
        ),
    ],
)
def test_tokens(
    before: dict[str, VerifierSignals | None], now: dict[str, VerifierSignals | None], tokens: float
) -> None:
    found = sample(told(100, **before), told(102, **now))
    assert found.verifiers.tokens == tokens
    assert found.drafters["eagle"].asked == tokens


def test_gauges_count_for_the_time_between() -> None:
    found = sample(
        told(100, a=signals(0), b=signals(0)), told(103, a=signals(6), b=signals(6, running=0), c=None)
    )
    assert found.at == 103
    totals = found.verifiers
    assert (totals.seconds, totals.replica_s, totals.busy_s, totals.running_s) == (3, 6, 3, 6)
    drafters = found.drafters["eagle"]
    assert (drafters.replica_s, drafters.sessions_s, drafters.queued_s) == (3, 12, 6)


def test_the_first_observation_counts_nothing() -> None:
    found = sample(None, told(100, a=signals(99)))
    assert found.verifiers.seconds == found.verifiers.tokens == found.drafters["eagle"].asked == 0


def test_sums_begin_after_a_moment() -> None:
    seen = [told(now, a=signals(now)) for now in (100, 101, 103, 106)]
    samples = [sample(old, new) for old, new in pairwise(seen)]
    assert verifiers_since(samples, 101).tokens == 5
    assert verifiers_since(samples, 106).tokens == 0
    assert drafters_since(samples, 101, "eagle").missed == 1.25
    assert drafters_since(samples, 101, "unknown").asked == 0
