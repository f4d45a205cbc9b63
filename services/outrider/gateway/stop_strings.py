"""Finds stop strings in text that arrives in pieces.

The outcome depends on the text alone, not on where it was cut: the stop string that is complete
first wins, the longest of those that end together. One that is complete before stop strings count
(`min_tokens`) is text like any other, though it may begin there, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Holds text back for as long as it may be the start of a stop string.

    One Knuth-Morris-Pratt automaton for each stop string, so a character costs constant time
    however the stop strings overlap.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`stops` are not empty strings, longest first is not needed; `include`: deliver the one found."""
        self._include = include
        self._stops = [(stop, _failure_table(stop)) for stop in stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.hit = False

    def push(self, text: str, *, counts: bool = True) -> str:
        """Take the next text; return what can be delivered. After a hit that is nothing more.

        `counts` says whether a stop string that is complete in it ends the text.
        """
        if self.hit:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        for index in range(len(self._held), len(held)):
            length = self._advance(held[index])
            if length and counts:
                self.hit = True
                self._held = ""
                return held[: index + 1 - (0 if self._include else length)]
        keep = max(self._matched)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """There is no more text: return what was held back."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Length of the longest stop string that ends with `char`; 0 if none does."""
        longest = 0
        for index, (stop, failure) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = failure[matched - 1]
            matched += stop[matched] == char
            if matched == len(stop):
                longest = max(longest, matched)
                matched = failure[matched - 1]
            self._matched[index] = matched
        return longest


def _failure_table(pattern: str) -> list[int]:
    """For each prefix of `pattern`: length of its longest proper border."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        length += pattern[index] == pattern[length]
        table[index] = length
    return table
