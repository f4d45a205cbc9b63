"""Where the last tokens of a growing text occurred in it before."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafting.lookup.continuation import LONGEST_MATCH, MOST_MATCHES, Continuation, agreeing
from outrider.drafting.lookup.hash_chain import HashChain


class OwnText:
    """Index over one session's tokens, by n-grams of a few lengths.

    To append a token takes the same time however long the text is, as does a look-up.
    100 to 500 bytes a token for four lengths, the more the less the text repeats itself.
    """

    __slots__ = ("_chains", "indexed")

    def __init__(self, grams: Sequence[int]) -> None:
        """`grams`: lengths of the n-grams; the shortest one is the shortest match."""
        self._chains = [(n, HashChain()) for n in sorted(grams, reverse=True)]
        self.indexed = 0  # tokens taken in

    def extend(self, tokens: Sequence[int], stop: int) -> None:
        """Take in tokens up to index `stop` of the session's."""
        start = self.indexed
        for n, chain in self._chains:
            for position in range(start, min(n, stop)):
                chain.skip(position)
            # An n-gram is entered when the token after it is known: its position then IS that
            # token's, and the text's own end never matches itself. Keys are hashes, which are a third
            # of the size of tuples; what is found is compared before it counts.
            for position in range(max(start, n), stop):
                chain.enter(hash(tuple(tokens[position - n : position])), position)
        self.indexed = max(start, stop)

    def find(self, tokens: list[int], depth: int) -> list[Continuation]:
        """What followed the text's last tokens before: longest n-gram first, then most recent first.

        Args:
            tokens: all of the text, taken in.
            depth: tokens of each continuation. Past the text's end it goes on from itself, as a loop would.
        """
        found: dict[int, Continuation] = {}
        tail = tokens[-LONGEST_MATCH:]
        for n, chain in self._chains:
            if len(tokens) <= n:
                continue
            looked_at = 0
            for position in chain.positions(hash(tuple(tokens[-n:]))):
                if looked_at == MOST_MATCHES:
                    break
                looked_at += 1
                if position in found:
                    continue
                length = agreeing(tokens[max(0, position - LONGEST_MATCH) : position], tail)
                if length >= n:
                    found[position] = Continuation(length, _looped(tokens, position, depth))
            if len(found) >= MOST_MATCHES:
                break
        return list(found.values())


def _looped(tokens: list[int], start: int, length: int) -> tuple[int, ...]:
    copied = tokens[start : start + length]
    period = len(tokens) - start
    while len(copied) < length:
        copied.append(copied[-period])
    return tuple(copied)
