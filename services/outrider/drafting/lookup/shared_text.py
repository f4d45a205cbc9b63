"""Text that was served, kept for later sessions of the same tenant. Its memory is bounded."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from outrider.drafting.lookup.continuation import LONGEST_MATCH, MOST_MATCHES, Continuation, agreeing
from outrider.drafting.lookup.hash_chain import HashChain

_END = -1
"""Stands between two pieces of text; no token id."""


class SharedText:
    """The last tokens that were served, to whomever, as a ring; found by tenant only.

    A piece of text is a tenant's. Its n-grams are entered under the tenant's number, and what is found
    counts only if that number stands at the position too, so neither a hash that collides nor an
    edge between two pieces can lead from one tenant to another.

    What is found is exact: each occurrence within the last `window` positions (pieces, their contexts and one
    position between two) whose n-gram lies in its piece, the last MOST_MATCHES for each n-gram length.
    100 to 300 bytes a position, the more the less the text repeats itself.
    """

    def __init__(self, grams: Sequence[int], window: int) -> None:
        """Args:
        grams: lengths of the n-grams, at most LONGEST_MATCH.
        window: positions that are held.
        """
        self._chains = [(n, HashChain(window)) for n in sorted(grams, reverse=True)]
        self._window = window
        # An entry's context outlives it, so that its key can still be made when the entry goes.
        self._size = window + LONGEST_MATCH
        # Each token stands twice, `_size` apart: so any slice is one piece of memory.
        self._ring = array("i", bytes(2 * 4 * self._size))
        self._owners = array("q", bytes(8 * self._size))
        self._end = 0  # positions written, ever
        self._numbers: dict[str, int] = {}  # of tenants that have text here
        self._pieces: deque[tuple[int, str]] = deque()  # end and tenant of each
        self._pieces_of: dict[str, int] = {}
        self._next_number = 1

    @property
    def held(self) -> int:
        """Positions in use."""
        return min(self._end, self._window)

    @property
    def tenants(self) -> int:
        """Tenants that have text here."""
        return len(self._numbers)

    def add(self, tenant: str, context: Sequence[int], served: Sequence[int]) -> None:
        """Take in a piece of text.

        Args:
            tenant: whose it is.
            context: what stands before it; only its last LONGEST_MATCH tokens count, and nothing that
                follows them within it can be found.
            served: the text, not empty. What does not fit the window is left out, from the start.
        """
        context = context[-LONGEST_MATCH:]
        room = self._window - len(context) - 1
        number = self._number(tenant)
        self._write(_END, number)
        start = self._end
        for token in context:
            self._write(token, number)
        for token in served[-room:]:
            self._write(token, number, start)
        self._pieces.append((self._end, tenant))
        self._drop_old_pieces()

    def find(self, tenant: str, tail: Sequence[int], depth: int) -> list[Continuation]:
        """What followed these last tokens in the tenant's text: longest n-gram first, then most recent first.

        Args:
            tenant: whose text counts.
            tail: a text's last tokens; at most LONGEST_MATCH are compared.
            depth: most tokens of each continuation; it ends where its piece ends.
        """
        number = self._numbers.get(tenant)
        if number is None:
            return []
        tail = tuple(tail[-LONGEST_MATCH:])
        found: dict[int, Continuation] = {}
        for n, chain in self._chains:
            if len(tail) < n:
                continue
            looked_at = 0
            for position in chain.positions(hash((number, *tail[-n:]))):
                if looked_at == MOST_MATCHES or position < self._end - self._window:
                    break
                looked_at += 1
                if position in found or self._owners[position % self._size] != number:
                    continue
                length = agreeing(self._slice(self._back(position, LONGEST_MATCH), position), tail)
                if length >= n:
                    found[position] = Continuation(length, self._until_end(position, depth), shared=True)
            if len(found) >= MOST_MATCHES:
                break
        return list(found.values())

    def _write(self, token: int, number: int, piece: int | None = None) -> None:
        """One position; `piece` is where its piece starts, if its n-grams are to be found."""
        position = self._end
        leaving = position - self._window
        for n, chain in self._chains:
            if leaving >= n:
                owner = self._owners[leaving % self._size]
                chain.forget(hash((owner, *self._slice(leaving - n, leaving))), leaving)
            if piece is not None and position - n >= piece:
                chain.enter(hash((number, *self._slice(position - n, position))), position)
            else:
                chain.skip(position)
        index = position % self._size
        self._ring[index] = self._ring[index + self._size] = token
        self._owners[index] = number
        self._end = position + 1

    def _number(self, tenant: str) -> int:
        number = self._numbers.get(tenant)
        if number is None:
            # Never one that was used before: it may still stand at old positions.
            number = self._numbers[tenant] = self._next_number
            self._next_number += 1
        self._pieces_of[tenant] = self._pieces_of.get(tenant, 0) + 1
        return number

    def _drop_old_pieces(self) -> None:
        while self._pieces and self._pieces[0][0] <= self._end - self._window:
            _, tenant = self._pieces.popleft()
            self._pieces_of[tenant] -= 1
            if not self._pieces_of[tenant]:
                del self._pieces_of[tenant], self._numbers[tenant]

    def _slice(self, start: int, stop: int) -> tuple[int, ...]:
        index = start % self._size
        return tuple(self._ring[index : index + stop - start])

    def _back(self, position: int, count: int) -> int:
        """The position `count` before, or the oldest one whose token is held."""
        return max(0, position - count, self._end - self._size)

    def _until_end(self, position: int, depth: int) -> tuple[int, ...]:
        tokens = self._slice(position, min(position + depth, self._end))
        return tokens[: tokens.index(_END)] if _END in tokens else tokens
