"""An index from n-grams to what followed them, built as a sequence grows."""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """For each n in a range, where each n-gram of a growing sequence occurred last.

    Appending a token and finding a match take time independent of the sequence's length. About
    100 bytes for each token and n.
    """

    __slots__ = ("_last", "indexed")

    def __init__(self, shortest: int, longest: int) -> None:
        # Keys are hashes of n-grams, which are a third of the size of tuples; a hit is compared
        # with the tokens themselves before it counts.
        self._last: list[tuple[int, dict[int, int]]] = [(n, {}) for n in range(longest, shortest - 1, -1)]
        self.indexed = 0  # tokens taken in

    def extend(self, tokens: Sequence[int], stop: int) -> None:
        """Take in tokens up to index `stop` of the sequence."""
        start = self.indexed
        for n, last in self._last:
            # An n-gram is entered when the token after it is known: its position then IS that
            # token's, and the sequence's own end never matches itself.
            for position in range(max(start, n), stop):
                last[hash(tuple(tokens[position - n : position]))] = position
        self.indexed = max(start, stop)

    def find(self, tokens: Sequence[int]) -> int:
        """Where the sequence's last tokens went on before: the longest n-gram's most recent occurrence.

        Returns:
            Index of the token that followed it, or -1.
        """
        for n, last in self._last:
            if len(tokens) <= n:
                continue
            gram = tokens[-n:]
            position = last.get(hash(tuple(gram)), -1)
            if position >= 0 and tokens[position - n : position] == gram:
                return position
        return -1
