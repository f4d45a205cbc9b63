"""Who steps now: pure decisions."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.verifying.scheduler import Candidate, Share, may_start, plan_step

READY = Candidate(1)


def test_nothing_to_do_means_nothing_to_wait_for() -> None:
    plan = plan_step([], 0.0, 256)
    assert plan.shares == () and plan.wait_until is None


def test_all_ready_sessions_step_together() -> None:
    plan = plan_step([READY, READY], 0.0, 256)
    assert plan.shares == (Share(0, 1, last=True), Share(1, 1, last=True))


def test_a_ready_session_waits_for_one_that_awaits_its_proposal() -> None:
    plan = plan_step([READY, Candidate(1, 5.0)], 4.0, 256)
    assert plan.shares == () and plan.wait_until == 5.0


def test_the_end_of_the_shortest_patience_starts_the_step() -> None:
    candidates = [READY, Candidate(1, 5.0), Candidate(1, 7.0)]
    assert plan_step(candidates, 4.0, 256).wait_until == 5.0
    # The third may still wait: it joins the next step.
    assert plan_step(candidates, 5.0, 256).shares == (Share(0, 1, last=True), Share(1, 1, last=True))


def test_prompts_share_the_budget_oldest_first_and_mix_with_rounds() -> None:
    plan = plan_step([Candidate(100), READY, Candidate(300), Candidate(10)], 0.0, 256)
    assert plan.shares == (Share(0, 100, last=True), Share(1, 1, last=True), Share(2, 156, last=False))


def test_a_session_alone_may_always_start() -> None:
    assert may_start(needed=10, free=0, running=0, max_sessions=1)
    assert not may_start(needed=10, free=9, running=1, max_sessions=2)
    assert may_start(needed=10, free=10, running=1, max_sessions=2)
    assert not may_start(needed=1, free=10, running=2, max_sessions=2)


candidates = st.lists(
    st.builds(Candidate, st.integers(1, 40), st.none() | st.floats(0, 10)).map(
        lambda c: c if c.missing == 1 else Candidate(c.missing)
    ),
    max_size=8,
)


@given(candidates, st.floats(0, 10), st.integers(16, 64))
def test_there_is_always_something_to_run_or_a_bounded_wait(
    sessions: list[Candidate], now: float, budget: int
) -> None:
    plan = plan_step(sessions, now, budget)
    assert bool(plan.shares) or plan.wait_until is not None or not sessions
    if plan.wait_until is not None:
        assert plan.wait_until > now
    prefill = sum(share.tokens for share in plan.shares if sessions[share.index].missing > 1)
    assert prefill <= budget
    for share in plan.shares:
        assert 1 <= share.tokens <= sessions[share.index].missing
        assert share.last == (share.tokens == sessions[share.index].missing)
