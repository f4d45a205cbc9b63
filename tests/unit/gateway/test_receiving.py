"""One sequence of what several streams tell, each part once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import InternalError
from outrider.core.params import TokenLogprobs
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.gateway.receiving import Received
from outrider.wire.messages import PromptLogprobs, SessionFinished, SessionStarted, SessionTokens


def entries(ids):
    return tuple(TokenLogprobs(token, -float(token), 1, ()) for token in ids)


def tokens(first, ids, accepted=0):
    return SessionTokens(first, tuple(ids), accepted, entries(ids))


@st.composite
def streams(draw):
    """Tokens of a session, and streams that tell them, each from where it likes up to where it breaks."""
    whole = draw(st.lists(st.integers(0, 9), min_size=1, max_size=30))
    known, told = 0, []
    while known < len(whole):
        first = draw(st.integers(0, known))
        events = []
        for _ in range(draw(st.integers(0, 4))):
            until = draw(st.integers(first, len(whole)))
            events.append(tokens(first, whole[first:until], draw(st.integers(0, until - first))))
            first = until
        known = max(known, first)
        told.append(events)
        if not any(event.token_ids for event in events):
            told.append([tokens(known, whole[known:])])
            known = len(whole)
    return whole, told


@given(streams())
def test_every_token_comes_once_and_in_order(case):
    whole, told = case
    received, seen, logprobs = Received(), [], []
    for events in told:
        received.attached(same_owner=False)
        for event in events:
            new = received.take(event)
            if new is not None:
                assert new.first_token == len(seen)
                assert new.accepted <= len(new.token_ids)
                seen += new.token_ids
                logprobs += new.logprobs
    assert seen == received.tokens == whole
    assert tuple(logprobs) == entries(whole)


@given(streams(), st.data())
def test_another_token_than_the_one_known_is_never_taken(case, data):
    whole, _ = case
    received = Received()
    received.attached(same_owner=False)
    received.take(tokens(0, whole))
    received.attached(same_owner=False)
    wrong = data.draw(st.integers(0, len(whole) - 1))
    changed = [*whole[:wrong], whole[wrong] + 1, *whole[wrong + 1 :]]
    with pytest.raises(InternalError, match="other tokens"):
        received.take(tokens(0, [*changed, 5]))
    assert received.tokens == whole


@pytest.mark.parametrize("first", [1, 3])
def test_within_a_stream_nothing_is_left_out_or_told_again(first):
    received = Received()
    received.attached(same_owner=False)
    received.take(tokens(0, [5, 6]))
    with pytest.raises(InternalError, match=f"sent token {first}, 2 was next"):
        received.take(tokens(first, [6]))


def test_a_stream_that_begins_behind_what_is_known_is_refused():
    received = Received()
    received.attached(same_owner=False)
    with pytest.raises(InternalError, match="sent token 1, 0 was next"):
        received.take(tokens(1, [6]))


def test_log_probabilities_of_the_prompt_come_once():
    received = Received()
    received.attached(same_owner=False)
    assert received.take(PromptLogprobs(1, entries([1, 2]))) == PromptLogprobs(1, entries([1, 2]))
    received.attached(same_owner=False)
    assert received.take(PromptLogprobs(1, entries([1]))) is None
    assert received.take(PromptLogprobs(2, entries([2, 3, 4]))) == PromptLogprobs(3, entries([3, 4]))
    with pytest.raises(InternalError, match="position 6, 5 was next"):
        received.take(PromptLogprobs(6, entries([6])))
    received.take(tokens(0, [7]))
    received.attached(same_owner=False)
    assert received.take(PromptLogprobs(1, entries([1, 2, 3, 4]))) is None


@pytest.mark.parametrize(
    ("same_owner", "rounds", "drafted", "accepted"), [(True, 3, 9, 4), (False, 5, 12, 7)]
)
def test_rounds_of_an_owner_that_is_gone_are_added_to_those_of_the_last(
    same_owner, rounds, drafted, accepted
):
    received = Received()
    received.attached(same_owner=False)
    received.take(tokens(0, [1, 2, 3], 2))
    received.take(tokens(3, [4, 5], 1))
    received.attached(same_owner=same_owner)
    stats = SpeculationStats(rounds=3, draft_tokens=9, accepted_tokens=4, drafter="d")
    finished = received.take(SessionFinished(FinishReason.STOP, Usage(1, 5), stats))
    told = finished.speculation
    assert (told.rounds, told.draft_tokens, told.accepted_tokens) == (rounds, drafted, accepted)
    assert told.drafter == "d"


def test_a_session_starts_once():
    with pytest.raises(InternalError, match="twice"):
        Received().take(SessionStarted(1, 1))


def test_a_pause_is_told_once_and_only_where_a_stream_broke():
    received = Received()
    received.attached(same_owner=False)
    received.take(tokens(0, [1]))
    assert received.pause() is None
    received.broken()
    assert received.pause() is None
    received.attached(same_owner=False)
    received.take(tokens(1, [2]))
    assert received.pause() > 0
    assert received.pause() is None
