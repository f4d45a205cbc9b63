"""The n-gram index against a search of the whole sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.drafting.lookup.ngrams import NgramIndex


def search(tokens: list[int], shortest: int, longest: int) -> int:
    """Where the last tokens went on before: longest n-gram first, then most recent."""
    for n in range(longest, shortest - 1, -1):
        for position in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) > n and tokens[position - n : position] == tokens[-n:]:
                return position
    return -1


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.integers(1, 3),
    st.integers(0, 3),
    st.lists(st.integers(1, 9)),
)
def test_finds_what_a_search_finds(tokens: list[int], shortest: int, more: int, chunks: list[int]) -> None:
    index = NgramIndex(shortest, shortest + more)
    stop = 0
    for chunk in [*chunks, len(tokens)]:
        stop = min(stop + chunk, len(tokens))
        index.extend(tokens, stop)
        assert index.indexed == stop
        assert index.find(tokens[:stop]) == search(tokens[:stop], shortest, shortest + more)


def test_the_end_does_not_match_itself() -> None:
    index = NgramIndex(1, 2)
    index.extend([1, 2, 3], 3)
    assert index.find([1, 2, 3]) == -1
