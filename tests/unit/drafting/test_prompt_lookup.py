"""Prompt lookup proposes from the committed tokens alone, however they came."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal
from outrider.drafting.lookup.prompt_lookup import prompt_lookup
from outrider.drafting.scheduler import DraftScheduler
from outrider.wire.messages import AdvanceDraft, OpenDraft

PARAMS = SamplingParams()
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple)


def scheduler() -> DraftScheduler:
    method = prompt_lookup(ngram_min=1, ngram_max=3, max_tokens=10_000)
    return DraftScheduler(method, max_sessions=4, max_draft_tokens=16)


def last_draft(one: DraftScheduler) -> tuple[int, ...]:
    while one.has_work:
        one.step()
    event = one.take().answers[-1].event
    assert isinstance(event, Proposal)
    return event.tree.token_ids


@given(TOKENS, st.lists(st.tuples(TOKENS, st.integers(0, 6), st.booleans()), max_size=6), st.integers(1, 8))
def test_history_does_not_matter(
    prompt: tuple[int, ...], commits: list[tuple[tuple[int, ...], int, bool]], length: int
) -> None:
    one = scheduler()
    one.apply(1, OpenDraft("a", 1, prompt, PARAMS, 3), time.perf_counter_ns())
    tokens = prompt
    for committed, wanted, work in commits:
        if work:
            one.step()
        one.apply(1, AdvanceDraft("a", 1, len(tokens), committed, 0, wanted), time.perf_counter_ns())
        tokens += committed
    one.apply(1, AdvanceDraft("a", 1, len(tokens), (), 0, length), time.perf_counter_ns())
    fresh = scheduler()
    fresh.apply(1, OpenDraft("b", 1, tokens, PARAMS, length), time.perf_counter_ns())
    assert last_draft(one) == last_draft(fresh)


@given(TOKENS, st.integers(1, 8), st.integers(1, 8))
def test_a_shorter_draft_is_the_start_of_a_longer_one(tokens: tuple[int, ...], one: int, other: int) -> None:
    drafts = []
    for length in sorted((one, other)):
        fresh = scheduler()
        fresh.apply(1, OpenDraft("a", 1, tokens, PARAMS, length), time.perf_counter_ns())
        drafts.append(last_draft(fresh))
    assert drafts[1][: len(drafts[0])] == drafts[0]
    assert len(drafts[0]) in (0, min(one, other))
