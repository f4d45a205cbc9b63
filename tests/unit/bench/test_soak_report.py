"""The figures of the soak: which pauses count, and for which fault."""

from __future__ import annotations

import io
import random

from bench.soak.journal import Fault, Journal
from bench.soak.report import kind_of, pauses, summary
from bench.soak.sampling import Memory
from bench.soak.streams import Outcome
from bench.soak.workload import GRPC, questions

KILL = Fault("kill", "verifier-1", began=10.0, mended=14.0)


def outcome(*times: float) -> Outcome:
    (question,) = questions(random.Random(1), count=1, longest=64)
    return Outcome(GRPC, question, times[0], times[-1], list(times), len(times), 0)


def test_a_fault_is_named_without_the_number_of_the_replica() -> None:
    assert kind_of(KILL) == "kill verifier"
    assert kind_of(Fault("restart empty", "redis", 0)) == "restart empty redis"
    assert kind_of(Fault("freeze", "draft_model-2", 0)) == "freeze draft_model"


def test_a_pause_counts_for_the_fault_that_it_overlaps() -> None:
    seen = pauses([outcome(9.8, 9.9, 11.5, 11.6)], [KILL])
    assert seen == {"kill verifier": [11.5 - 9.9]}


def test_of_two_faults_the_one_that_covers_more_of_the_pause_is_its_cause() -> None:
    sooner = Fault("freeze", "draft_model-1", began=7.0, mended=8.0)
    seen = pauses([outcome(9.8, 9.9, 12.0, 12.1)], [sooner, KILL])
    assert list(seen) == ["kill verifier"]


def test_pauses_of_other_times_and_short_ones_do_not_count() -> None:
    assert pauses([outcome(1.0, 1.1, 5.0, 5.1), outcome(17.0, 17.1, 20.0, 20.1)], [KILL]) == {}
    assert pauses([outcome(10.0, 10.1, 10.2)], [KILL]) == {}


def test_a_stream_that_is_slow_all_the_time_has_no_pauses() -> None:
    assert pauses([outcome(10.0, 11.0, 12.0, 13.0)], [KILL]) == {}


def test_growth_is_more_than_noise() -> None:
    assert not Memory("verifier-2", at_half=600.0, at_end=650.0, slope_per_min=10.0).grows
    assert Memory("verifier-2", at_half=600.0, at_end=700.0, slope_per_min=20.0).grows


def test_the_summary_counts_streams_faults_and_violations() -> None:
    journal = Journal(io.StringIO(), faults=[KILL])
    journal.violation("a token was lost")
    found = summary(journal, [outcome(9.8, 9.9, 11.5, 11.6), outcome(1.0, 1.1)], [], {"x": 2.0})
    assert (found["streams"], found["tokens"], found["violations"]) == (2, 6, 1)
    assert found["faults"]["kill verifier"] == {"count": 1, "pauses": 1, "median": 1.6, "longest": 1.6}
    assert found["violations_in_words"] == ["a token was lost"]
