"""Committed and drafted tokens of one session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.params import SamplingParams
from outrider.drafting.session import DraftSession, SessionKey

TOKENS = st.lists(st.integers(0, 2), max_size=6)


def session(tokens: list[int], ahead: list[int]) -> DraftSession:
    return DraftSession(SessionKey(1, "a"), 1, SamplingParams(), list(tokens), list(ahead))


def test_commit_that_agrees_keeps_the_rest() -> None:
    one = session([1, 2], [3, 4, 5])
    assert one.commit([3, 4]) == 5
    assert (one.tokens, one.ahead) == ([1, 2, 3, 4], [5])


def test_commit_past_the_draft_keeps_what_agrees() -> None:
    one = session([1, 2], [3, 4])
    assert one.commit([3, 4, 5]) == 4
    assert (one.tokens, one.ahead) == ([1, 2, 3, 4, 5], [])


def test_commit_that_differs_drops_the_draft() -> None:
    one = session([1, 2], [3, 4, 5])
    assert one.commit([3, 9]) == 3
    assert (one.tokens, one.ahead) == ([1, 2, 3, 9], [])


@given(TOKENS, TOKENS, TOKENS)
def test_commit(tokens: list[int], ahead: list[int], committed: list[int]) -> None:
    one = session(tokens, ahead)
    before = one.window(0, len(one))
    same = one.commit(committed)
    after = one.window(0, len(one))
    assert one.tokens == tokens + committed
    assert before[:same] == after[:same]
    assert before[: len(after)] == after or same == len(tokens) + next(
        (i for i, (a, b) in enumerate(zip(committed, ahead, strict=False)) if a != b), len(ahead)
    )


@given(TOKENS, TOKENS, st.integers(0, 12), st.integers(0, 12))
def test_window(tokens: list[int], ahead: list[int], start: int, length: int) -> None:
    stop = min(start + length, len(tokens) + len(ahead))
    if start <= stop:
        assert session(tokens, ahead).window(start, stop) == (tokens + ahead)[start:stop]
