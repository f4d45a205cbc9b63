"""Draft tokens as the target's tokens: the same text, as the target would most likely cut it."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.drafting.foreign.token_texts import TokenTexts

WINDOW = 8
"""Committed target tokens that the draft's text is encoded together with."""
_GUARD = "\n"
"""Nothing merges with it. Text that goes on within a committed token is encoded after it."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """Target tokens that a draft stands for."""

    token_ids: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()


def rename(
    target: TokenTexts,
    committed: Sequence[int],
    drafted: Sequence[bytes],
    confidences: Sequence[float],
    *,
    held: bytes = b"",
    ended: bool = False,
) -> Renamed:
    """The draft in the target's tokens, without its last one unless it `ended`: more text could change that.

    Args:
        target: the target's tokenizer.
        committed: the session's target tokens.
        drafted: bytes of each draft token.
        confidences: of each draft token.
        held: last bytes of the committed text, which the draft begins with.
        ended: whether no text can follow the draft.
    """
    joined = b"".join(drafted)
    if len(joined) <= len(held) or not joined.startswith(held):
        return Renamed()
    window = _window(target, committed)
    if held and not window:
        return Renamed()
    token_ids = _continuation(target, window, joined[len(held) :])
    if not ended:
        token_ids = token_ids[:-1]
    return Renamed(tuple(token_ids), _shared_out(target, token_ids, drafted, confidences, len(held)))


def _window(target: TokenTexts, committed: Sequence[int]) -> list[int]:
    """The last tokens, from the start of a character on, and none before a special token."""
    start = len(committed)
    best = start
    while start > max(0, len(committed) - WINDOW):
        start -= 1
        text = target.bytes_of(committed[start])
        if not text:
            break
        if text[0] & 0xC0 != 0x80:
            best = start
    return list(committed[best:])


def _continuation(target: TokenTexts, window: Sequence[int], drafted: bytes) -> list[int]:
    before = b"".join(target.bytes_of(token_id) for token_id in window)
    text = _decoded(before + drafted)
    ids, ends = target.encode(text)
    try:
        seam = len(before.decode())
    except UnicodeDecodeError:  # within a character only the tokens themselves tell
        return ids[len(window) :] if ids[: len(window)] == list(window) else []
    if seam in ends:
        return ids[ends.index(seam) + 1 :]
    ids, ends = target.encode(_GUARD + text[seam:])
    return ids[ends.index(1) + 1 :] if 1 in ends else []


def _decoded(text: bytes) -> str:
    """As much of it as is UTF-8."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError as error:
        return text[: error.start].decode()


def _shared_out(
    target: TokenTexts,
    token_ids: Sequence[int],
    drafted: Sequence[bytes],
    confidences: Sequence[float],
    skipped: int,
) -> tuple[float, ...]:
    """For each target token the product over the draft tokens that begin within it."""
    stops = []
    place = 0
    for token_id in token_ids:
        place += len(target.bytes_of(token_id))
        stops.append(place)
    answers = [1.0] * len(stops)
    starts, place = [], -skipped
    for text in drafted:
        starts.append(place)
        place += len(text)
    index = 0
    for start, confidence in zip(starts, confidences, strict=True):
        while index < len(stops) and start >= stops[index]:
            index += 1
        if index == len(stops):
            break
        answers[index] = math.prod((answers[index], confidence))
    return tuple(answers)
