"""The scheduler's rules, with prompt lookup as the method (a step at a time, no thread, no gRPC)."""

from __future__ import annotations

import time

import pytest

from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal, StaleReason
from outrider.drafting.lookup import method
from outrider.drafting.lookup.prompt_lookup import prompt_lookup
from outrider.drafting.scheduler import EVICTED_REST_S, DraftScheduler
from outrider.wire.messages import AdvanceDraft, CloseDraft, DraftCommand, OpenDraft, Stale

PARAMS = SamplingParams(temperature=0.0)


class Bench:
    """A scheduler driven by hand."""

    def __init__(self, *, max_sessions: int = 8, max_tokens: int = 1000) -> None:
        self.method = prompt_lookup(ngram_min=1, ngram_max=2, max_tokens=max_tokens)
        self.scheduler = DraftScheduler(self.method, max_sessions=max_sessions, max_draft_tokens=4)

    def put(self, *commands: DraftCommand, stream: int = 1) -> None:
        for command in commands:
            self.scheduler.apply(stream, command, time.perf_counter_ns())

    def run(self) -> list[tuple[str, object]]:
        """Work until there is none; (session, proposed tokens or why not)."""
        seen: list[tuple[str, object]] = []
        for _ in range(1000):
            self.scheduler.step()
            for answer in self.scheduler.take().answers:
                event = answer.event
                seen.append(
                    (event.session_id, event.tree.token_ids if isinstance(event, Proposal) else event.reason)
                )
            if not self.scheduler.has_work:
                return seen
        raise AssertionError("the scheduler does not come to rest")


def open_(name: str, tokens: tuple[int, ...], length: int = 2, patience_us: int = 0) -> OpenDraft:
    return OpenDraft(name, 1, tokens, PARAMS, length, patience_us=patience_us)


def advance(name: str, base: int, tokens: tuple[int, ...], length: int = 2) -> AdvanceDraft:
    return AdvanceDraft(name, 1, base, tokens, 0, length)


def test_a_newer_command_replaces_what_is_owed() -> None:
    bench = Bench()
    bench.put(open_("a", (1, 2, 3, 1)), advance("a", 4, (2,)))
    assert bench.run() == [("a", (3, 1))]


def test_late_proposals_come_after_those_in_time() -> None:
    bench = Bench()
    command = open_("a", (1, 2, 1), patience_us=5)
    bench.scheduler.apply(1, command, time.perf_counter_ns() - 1_000_000)
    bench.put(open_("b", (1, 2, 1), patience_us=60_000_000))
    assert bench.run() == [("b", (2, 1)), ("a", (2, 1))]


def test_close_and_stream_end_forget_what_is_owed() -> None:
    bench = Bench()
    bench.put(open_("a", (1, 1)), CloseDraft("a", 1), CloseDraft("a", 1))
    bench.put(open_("b", (1, 1)), stream=2)
    bench.scheduler.drop_stream(2)
    assert bench.run() == []
    assert bench.scheduler.load.sessions == 0 and bench.method.usage == 0


def test_a_long_prompt_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method, "TOKENS_PER_STEP", 100)
    bench = Bench()
    bench.put(open_("long", tuple(range(500))), open_("short", (1, 2, 1)))
    bench.scheduler.step()
    (answer,) = bench.scheduler.take().answers
    assert answer.event.session_id == "short"
    assert bench.run() == [("long", ())]


def test_sessions_that_owe_are_not_dropped_for_a_new_one() -> None:
    bench = Bench(max_sessions=2)
    bench.put(open_("a", (1, 1)), open_("b", (1, 1)), open_("c", (1, 1)))
    assert bench.run() == [("c", StaleReason.FULL), ("a", (1, 1)), ("b", (1, 1))]


def test_full_memory_drops_the_least_recently_used() -> None:
    bench = Bench(max_tokens=100)
    bench.put(open_("a", (1,) * 40), open_("b", (2,) * 40))
    bench.run()
    bench.put(advance("a", 40, (1,)))
    bench.run()
    bench.put(open_("c", (3,) * 40))
    assert bench.run() == [("c", (3, 3))]
    bench.put(advance("a", 41, (1,)), advance("b", 40, (2,)))
    assert bench.run() == [("b", StaleReason.UNKNOWN), ("a", (1, 1))]


def test_full_memory_with_all_at_work_refuses_the_last() -> None:
    bench = Bench(max_tokens=100)
    bench.put(open_("a", (1,) * 90), open_("b", (2,) * 150))
    assert bench.run() == [("a", (1, 1)), ("b", StaleReason.TOO_LONG)]
    assert bench.scheduler.load.sessions == 0 and bench.method.usage == 0


def test_a_failing_step_drops_its_sessions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.put(open_("idle", (1, 2, 1)))
    bench.run()
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise RuntimeError("out of memory")

        patch.setattr(bench.method, "step", fail)
        bench.put(open_("a", (1, 1)))
        assert bench.run() == [("a", StaleReason.UNKNOWN)]
    bench.put(advance("idle", 3, (2,)))
    assert bench.run() == [("idle", (1, 2))]


def test_answers_name_the_command_they_answer() -> None:
    bench = Bench()
    bench.scheduler.reject(7, "bad", 3, "why")
    (answer,) = bench.scheduler.take().answers
    assert answer.stream == 7
    assert answer.event == Stale("bad", 3, StaleReason.INVALID, "why")


def test_a_new_command_replaces_a_late_proposal() -> None:
    bench = Bench()
    command = open_("a", (1, 2, 1), patience_us=5)
    bench.scheduler.apply(1, command, time.perf_counter_ns() - 1_000_000)
    bench.put(advance("a", 3, (2,)))
    assert bench.run() == [("a", (1, 2))]


def test_a_session_that_had_to_give_way_is_refused_for_a_while() -> None:
    bench = Bench(max_sessions=2)
    bench.put(open_("a", (1, 1)), open_("b", (1, 1)))
    bench.run()
    bench.put(open_("c", (1, 1)))
    assert bench.run() == [("c", (1, 1))]  # a had to give way
    bench.put(advance("a", 2, (1,)), open_("a", (1, 1, 1)))
    assert bench.run() == [("a", StaleReason.UNKNOWN), ("a", StaleReason.FULL)]
    later = time.perf_counter_ns() + round(1.1e9 * EVICTED_REST_S)
    bench.scheduler.apply(1, open_("a", (1, 1, 1)), later)
    assert bench.run() == [("a", (1, 1))]  # now b gives way


@pytest.mark.parametrize("end", ["close", "stream"])
def test_a_session_that_had_to_give_way_comes_back_when_there_is_room(end: str) -> None:
    bench = Bench(max_sessions=2)
    bench.put(open_("a", (1, 1)))
    bench.run()
    bench.put(open_("b", (1, 1)), open_("c", (1, 1)), stream=2)
    bench.run()
    if end == "close":
        bench.put(CloseDraft("b", 1), stream=2)
    else:
        bench.scheduler.drop_stream(2)
    bench.put(open_("a", (1, 1, 1)))
    assert bench.run() == [("a", (1, 1))]
