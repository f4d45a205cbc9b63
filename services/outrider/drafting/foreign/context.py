"""A session's text in the draft model's tokens, kept up as the target's tokens are committed."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from outrider.drafting.foreign.token_texts import TokenTexts

KEPT = 32
"""Draft tokens at the end of a text that more text may change. With more text they are encoded anew; what
stands before them stays, so that a long session costs no more a round than a short one."""


class DraftContext:
    """Draft token ids of committed target tokens.

    Text between special tokens is encoded as text. A special token becomes the draft vocabulary's own of
    the same name, or else text. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, target: TokenTexts, draft: TokenTexts) -> None:
        self._target = target
        self._draft = draft
        self.ids: list[int] = list(draft.lead)
        self.taken = 0  # target tokens
        self.held = b""
        """Bytes of a character that is not complete: `ids` do not hold them."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begins = True  # there was no text yet
        self._start_run()

    def take(self, token_ids: Sequence[int]) -> int:
        """Go on by these target tokens.

        Returns:
            How many of the ids, from the start, are what they were.
        """
        self.taken += len(token_ids)
        same = len(self.ids)
        pieces: list[str] = []
        for token_id in token_ids:
            special = self._target.special.get(token_id)
            if special is None:
                pieces.append(self._decoder.decode(self._target.bytes_of(token_id)))
                continue
            pieces.append(self._decoder.decode(b"", final=True))
            same = min(same, self._extend("".join(pieces)))
            pieces.clear()
            same = min(same, self._take_special(special))
        same = min(same, self._extend("".join(pieces)))
        self.held = self._decoder.getstate()[0]
        return same

    def _take_special(self, text: str) -> int:
        own = self._draft.special_id(text)
        if own is None:
            return self._extend(text)
        if not (self._begins and self.ids == [own]):  # it may be the lead already
            self.ids.append(own)
        self._start_run()
        return len(self.ids)

    def _start_run(self) -> None:
        """Text that follows is encoded apart from what came before."""
        self._first = len(self.ids)  # ids from here on are those of `_text`
        self._text = ""
        self._ends: list[int] = []  # characters of `_text` that are through after each of them
        self._cut = False  # something came before `_text`

    def _extend(self, text: str) -> int:
        if text and self._begins:
            self._begins = False
            if self._target.strips_first_space:
                text = text.removeprefix(" ")
        if not text:
            return len(self.ids)
        self._text += text
        ids, ends = self._draft.encode(self._text)
        if self._cut:
            ids, ends = self._join(ids, ends)
        before = self.ids[self._first :]
        same = _common(before, ids)
        self.ids[self._first :] = ids
        self._ends = ends
        changed = self._first + same
        self._trim()
        return changed

    def _join(self, ids: list[int], ends: list[int]) -> tuple[list[int], list[int]]:
        """The former ids up to where both have a token's end, then the new ones.

        The first token after a cut may come out otherwise than in the middle of a text.
        """
        places = {end: index for index, end in enumerate(self._ends) if end >= 0}
        for index, end in enumerate(ends):
            place = places.get(end)
            if place is not None:
                stop = self._first + place + 1
                kept = self.ids[self._first : stop]
                return kept + ids[index + 1 :], self._ends[: place + 1] + ends[index + 1 :]
        return ids, ends

    def _trim(self) -> None:
        if len(self._ends) < 2 * KEPT:
            return
        count = len(self._ends) - KEPT
        while count and self._ends[count - 1] < 0:
            count -= 1
        if not count:
            return
        end = self._ends[count - 1]
        self._text = self._text[end:]
        self._ends = [own - end if own >= 0 else own for own in self._ends[count:]]
        self._first += count
        self._cut = True


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Elements at the start that are the same."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
