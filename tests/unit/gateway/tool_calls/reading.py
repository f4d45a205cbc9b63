"""Reads texts in pieces and puts what comes out together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import strategies as st

from outrider.gateway.tool_calls import CallPiece, ToolCallReader

Read = tuple[str, list[tuple[str, str]]]
"""Text, and names and arguments of calls."""


def read(reader: ToolCallReader, pieces: Iterable[str]) -> Read:
    """All that a reader gives for `pieces`; a call's name comes first, and once."""
    given: list[Any] = []
    for piece in pieces:
        given += reader.push(piece)
    return put_together(given + reader.finish())


def put_together(given: Iterable[Any]) -> Read:
    """Text and calls of pieces."""
    text, calls = "", []
    for piece in given:
        if not isinstance(piece, CallPiece):
            assert piece, "an empty text is no news"
            text += piece
        elif piece.index == len(calls):
            assert piece.name
            calls.append((piece.name, piece.arguments))
        else:
            assert piece.index == len(calls) - 1
            assert not piece.name
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.arguments)
    return text, calls


def split(text: str, cuts: Iterable[int]) -> list[str]:
    """`text` cut at these places."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


def check_any_split(make: Callable[[], ToolCallReader], text: str, cuts: list[int]) -> Read:
    """However it is cut, a text reads the same, and so does each part from its start; what comes out."""
    whole = read(make(), [text])
    assert read(make(), split(text, cuts)) == whole
    assert read(make(), text) == whole
    reader, given, before = make(), [], ""
    for piece in split(text, cuts):
        given += reader.push(piece)
        before += piece
        assert put_together(given) == put_together(make().push(before))
    return whole


cuts = st.lists(st.integers(0, 10_000), max_size=12)


def texts(*words: str) -> st.SearchStrategy[str]:
    """Texts with much of what matters to a reader in them, in any order."""
    ordinary = st.sampled_from([" ", "\n", "a", "é", '"', "\\", "{", "}", "[", "]", ",", ":", ";", "<", "1"])
    return st.lists(st.one_of(st.sampled_from(words), ordinary), max_size=14).map("".join)
