"""The round's overhead: what lies between two forwards of the target, less the drafter's own."""

from __future__ import annotations

from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from outrider.core.params import SamplingParams, StopParams
from outrider.core.rounds import Proposal
from outrider.core.sessions import SessionRecord
from outrider.core.trees import TokenTree
from outrider.engine.api import SequenceHandle, StepItem
from outrider.telemetry import names
from outrider.telemetry.metrics import VerifierMetrics
from outrider.verifying.meter import Meter
from outrider.verifying.session import Drafting, Session
from outrider.verifying.work import StepTimes, Work


def work(order: int, *, waited_s: float, draft_us: int = 0, forward_us: int = 0) -> Work:
    record = SessionRecord(f"s{order}", (1,), SamplingParams(), StopParams(8, frozenset()))
    item = StepItem(cast(SequenceHandle, None), TokenTree.chain([1]), "all")
    proposal = Proposal(f"s{order}", 1, 1, TokenTree(), draft_us=draft_us, forward_us=forward_us)
    session = Session.admitted(record, order, Drafting())
    return Work(
        session, item, TokenTree(), True, 1, proposals={"d": proposal} if draft_us else {}, waited_s=waited_s
    )


class Clock:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.meter = Meter(VerifierMetrics(self._registry, "m"))

    def __call__(self, metric: names.Metric, suffix: str = "_sum", **labels: str) -> float:
        value = self._registry.get_sample_value(metric.name + suffix, {"model_name": "m", **labels})
        assert value is not None
        return value

    def step(self, works: list[Work], at: float) -> None:
        """Begins at `at`, 10 ms of forward; planning, picks, handing over and committing take 1 ms each."""
        times = StepTimes(at + 0.001, at + 0.011, at + 0.012)
        self.meter.step(works, at, times, at + 0.013, at + 0.014)


def test_the_drafters_forwards_are_no_overhead_and_all_else_between_two_forwards_is() -> None:
    clock = Clock()
    clock.step([work(1, waited_s=0.0)], 1.0)
    clock.step([work(1, waited_s=0.0075, draft_us=5000, forward_us=4000)], 1.020)
    assert clock(names.ROUND_OVERHEAD, "_count") == 1
    assert clock(names.ROUND_OVERHEAD) == pytest.approx(0.010 - 0.004)
    parts = {
        part: clock(names.ROUND_PART_TIME, part=part) for part in ("draft_wait", "draft", "draft_forward")
    }
    assert parts == pytest.approx({"draft_wait": 0.007, "draft": 0.005, "draft_forward": 0.004})


def test_edits_are_counted_apart_from_sampling() -> None:
    clock = Clock()
    clock.meter.step([work(1, waited_s=0.0)], 1.0, StepTimes(1.001, 1.011, 1.016, 0.003), 1.017, 1.018)
    parts = {part: clock(names.ROUND_PART_TIME, part=part) for part in ("forward", "editing", "sampling")}
    assert parts == pytest.approx({"forward": 0.010, "editing": 0.003, "sampling": 0.002})


def test_a_round_of_other_sessions_has_no_overhead_to_tell() -> None:
    clock = Clock()
    clock.step([work(1, waited_s=0.0)], 1.0)
    clock.step([work(2, waited_s=0.004, draft_us=1000)], 1.020)
    clock.step([work(2, waited_s=0.004)], 1.040)  # it waited in vain
    assert clock(names.ROUND_OVERHEAD, "_count") == 0
