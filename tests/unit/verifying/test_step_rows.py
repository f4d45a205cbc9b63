"""Draft tokens give way as sessions come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.verifying.step_rows import draft_share


def test_drafts_shrink_with_load_and_end() -> None:
    assert [draft_share(64, sessions) for sessions in (1, 4, 8, 16, 32, 33, 64, 1000)] == [
        *(63, 15, 7, 3, 1),
        *(0, 0, 0),
    ]


def test_without_a_bound_nothing_shrinks() -> None:
    assert draft_share(0, 1000) >= 1 << 20


@given(st.integers(1, 4096), st.integers(0, 4096))
def test_a_step_with_drafts_stays_within_its_rows(step_rows: int, sessions: int) -> None:
    share = draft_share(step_rows, sessions)
    assert share >= 0
    assert share == 0 or sessions * (1 + share) <= step_rows
    assert share >= draft_share(step_rows, sessions + 1)
