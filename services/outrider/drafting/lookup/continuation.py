"""What followed the same tokens once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LONGEST_MATCH = 32
"""Tokens that are compared: longer matches say no more."""
MOST_MATCHES = 32
"""Occurrences of an n-gram that are looked at, the most recent ones. Bounds the time of a look-up."""


class Continuation(NamedTuple):
    """One occurrence of a text's last tokens."""

    length: int  # tokens before it that agree with the text's last ones, at most LONGEST_MATCH
    token_ids: tuple[int, ...]  # what came then
    shared: bool = False  # in another session's text


def agreeing(before: Sequence[int], tail: Sequence[int]) -> int:
    """How many last tokens of both are the same."""
    most = min(len(before), len(tail))
    if before[len(before) - most :] == tail[len(tail) - most :]:
        return most
    length = 0
    while before[-1 - length] == tail[-1 - length]:
        length += 1
    return length
