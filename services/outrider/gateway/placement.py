"""Where a session goes. Pure functions: what verifiers say of themselves in, an order to try them in out.

1. The verifier that holds the session, if it is known: it need not compute anything again.
2. The one whose KV of the prompt's beginning is likely to be there: rendezvous hashing over the first blocks,
   so that equal beginnings meet on the same verifier, and one that comes or goes moves few of them. Only
   while it is not much busier than the next choice.
3. The less busy of two drawn at random: close to the best of all, without a herd that runs after the
   same figures.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

AFFINITY_BLOCKS = 4
"""Blocks of the prompt that decide: enough to tell system prompts apart, few enough to be shared."""
UNEVEN_SESSIONS = 4
"""How many more sessions than the next choice a verifier may have for the sake of its KV, at least ..."""
UNEVEN_SHARE = 0.25
"""... or this share of the sessions that it can run, if that is more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A verifier as a place for a session."""

    address: str
    sessions: int = 0  # that run or wait there, as far as is known
    capacity: int = 0  # sessions that can run at once; 0: not told
    room: int = 0  # sessions that can run or wait; 0: not told
    alive: bool = True
    draining: bool = False

    @property
    def busy(self) -> float:
        """Sessions for each that can run; where that is not told, sessions."""
        return self.sessions / (self.capacity or 1)

    @property
    def full(self) -> bool:
        """It would refuse another session."""
        return bool(self.room) and self.sessions >= self.room


def affinity_key(prompt: Sequence[int], salt: str, block_size: int) -> bytes:
    """Equal for prompts of one owner that begin with the same whole KV blocks; empty: too short to tell."""
    blocks = min(AFFINITY_BLOCKS, len(prompt) // block_size)
    if not blocks:
        return b""
    head = array("q", prompt[: blocks * block_size]).tobytes()
    return hashlib.blake2b(head, key=hashlib.blake2b(salt.encode()).digest(), digest_size=16).digest()


def order(
    candidates: Sequence[Candidate], *, draw: random.Random, key: bytes = b"", holder: str = ""
) -> list[str]:
    """Addresses in the order in which they should be tried.

    Full ones come last, as their word is a little old; those that are dead or draining are left out. `key` is
    the prompt's (`affinity_key`), `holder` the address of the verifier that is known to have the session.
    """
    there = [candidate for candidate in candidates if candidate.alive and not candidate.draining]
    held = [candidate for candidate in there if candidate.address == holder]
    others = [candidate for candidate in there if candidate.address != holder]
    free = [candidate for candidate in others if not candidate.full]
    full = [candidate for candidate in others if candidate.full]
    placed = [*held, *_by_kv_and_load(free, key, draw), *_by_load(full, draw)]
    return [candidate.address for candidate in placed]


def _by_kv_and_load(candidates: Sequence[Candidate], key: bytes, draw: random.Random) -> list[Candidate]:
    ranked = _by_load(candidates, draw)
    if not key or len(ranked) < 2:
        return ranked
    likely = max(ranked, key=lambda candidate: _weight(key, candidate.address))
    rest = [candidate for candidate in ranked if candidate is not likely]
    allowed = max(UNEVEN_SESSIONS, UNEVEN_SHARE * likely.capacity) / (likely.capacity or 1)
    return [likely, *rest] if likely.busy <= rest[0].busy + allowed else ranked


def _by_load(candidates: Sequence[Candidate], draw: random.Random) -> list[Candidate]:
    """The less busy of two drawn at random, and so on with those that are left."""
    left = list(candidates)
    ranked = []
    while left:
        drawn = draw.sample(left, min(2, len(left)))
        ranked.append(min(drawn, key=lambda candidate: candidate.busy))  # of equals the first drawn
        left.remove(ranked[-1])
    return ranked


def _weight(key: bytes, address: str) -> bytes:
    return hashlib.blake2b(address.encode(), key=key, digest_size=16).digest()
