"""The index over a session's own text against a search of the whole of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.drafting.lookup.continuation import LONGEST_MATCH, MOST_MATCHES
from outrider.drafting.lookup.own_text import OwnText

TOKENS = st.lists(st.integers(0, 3), max_size=60)
GRAMS = st.sets(st.integers(1, 5), min_size=1)
DEPTH = 6


def search(tokens: list[int], grams: set[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Length of the match, and what followed: longest n-gram first, then most recent first."""
    found: dict[int, tuple[int, tuple[int, ...]]] = {}
    for n in sorted(grams, reverse=True):
        places = [
            at
            for at in range(len(tokens) - 1, n - 1, -1)
            if len(tokens) > n and tokens[at - n : at] == tokens[-n:]
        ]
        for at in places[:MOST_MATCHES]:
            length = n
            while length < LONGEST_MATCH and at > length and tokens[at - length - 1] == tokens[-length - 1]:
                length += 1
            going_on = list(tokens)
            while len(going_on) < len(tokens) + DEPTH:
                going_on.append(going_on[at + len(going_on) - len(tokens)])
            found.setdefault(at, (length, tuple(going_on[len(tokens) :])))
        if len(found) >= MOST_MATCHES:
            break
    return list(found.values())


@given(TOKENS, GRAMS, st.lists(st.integers(1, 9)))
def test_finds_what_a_search_finds(tokens: list[int], grams: set[int], chunks: list[int]) -> None:
    text = OwnText(sorted(grams))
    stop = 0
    for chunk in [*chunks, len(tokens)]:
        stop = min(stop + chunk, len(tokens))
        text.extend(tokens, stop)
        assert text.indexed == stop
        so_far = tokens[:stop]
        found = [(one.length, one.token_ids) for one in text.find(so_far, DEPTH)]
        assert found == search(so_far, grams)


@given(TOKENS.filter(bool), st.integers(40, 200))
def test_at_most_so_many_are_looked_at(tokens: list[int], times: int) -> None:
    repeated = tokens * times
    text = OwnText([1, 2])
    text.extend(repeated, len(repeated))
    found = [(one.length, one.token_ids) for one in text.find(repeated, DEPTH)]
    assert found == search(repeated, {1, 2})
    assert len(found) <= 2 * MOST_MATCHES


def test_the_end_does_not_match_itself() -> None:
    text = OwnText([1, 2])
    text.extend([1, 2, 3], 3)
    assert text.find([1, 2, 3], 4) == []


def test_past_the_end_it_goes_on_as_a_loop() -> None:
    tokens = [7, 1, 2, 1, 2]
    text = OwnText([2])
    text.extend(tokens, 5)
    assert [one.token_ids for one in text.find(tokens, 5)] == [(1, 2, 1, 2, 1)]
