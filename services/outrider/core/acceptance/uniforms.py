"""The random numbers of the rules "token" and "block": a function of seed, purpose, round and number alone.

Philox as for the coupled noise (docs/noise.md), with other domains, so that no two purposes share a bit. A
round is named by the tokens that the session holds when it starts: each round adds one at least, so no round
ever sees the numbers of another one, and the same round taken again sees the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from outrider.core.exponential import UNIFORM_BITS, uniforms
from outrider.core.philox import MASK32, philox4x32

# Word 1 of the counter; 0 and 1 are those of the coupled noise (core/noise.py).
DOMAIN_DRAFT = 2
DOMAIN_ACCEPT = 3
DOMAIN_RESIDUAL = 4
DOMAIN_BONUS = 5


class Round(NamedTuple):
    """A round of one session."""

    seed: int  # of the session
    base_len: int  # tokens that it holds, prompt included
    nodes: int  # of the proposal


class Uniforms(Protocol):
    """What a rule takes in one round; each in (0, 1), all independent."""

    def accept(self, node: int) -> float:
        """Decides whether a draft node is accepted."""

    def residual(self) -> float:
        """Draws the token after a rejection."""

    def bonus(self) -> float:
        """Draws the token after nodes that were all accepted, or after none."""


class RoundUniforms:
    """The numbers of one round."""

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[float]) -> None:
        """Of the residual's, the bonus's, then each node's."""
        self._values = values

    def accept(self, node: int) -> float:
        return self._values[2 + node]

    def residual(self) -> float:
        return self._values[0]

    def bonus(self) -> float:
        return self._values[1]


def round_uniforms(rounds: Sequence[Round]) -> list[RoundUniforms]:
    """The verifier's numbers for each of `rounds`, all at once."""
    draws: list[tuple[int, int, int, int]] = []
    for seed, base_len, nodes in rounds:
        draws.append((seed, DOMAIN_RESIDUAL, base_len, 0))
        draws.append((seed, DOMAIN_BONUS, base_len, 0))
        draws.extend((seed, DOMAIN_ACCEPT, base_len, node) for node in range(nodes))
    values = _floats(draws)
    answers, start = [], 0
    for own in rounds:
        stop = start + 2 + own.nodes
        answers.append(RoundUniforms(values[start:stop]))
        start = stop
    return answers


def draft_uniforms(draws: Sequence[tuple[int, int, int]]) -> list[float]:
    """The drafter's numbers.

    Args:
        draws: seed, the round from which on the chain has been drafted (tokens that the session held), and
            the position of the token to draw. A number that helped to draw a token which was then judged
            must not be used again: see `DraftSession.since`.
    """
    return _floats([(seed, DOMAIN_DRAFT, since, position) for seed, since, position in draws])


def _floats(draws: Sequence[tuple[int, int, int, int]]) -> list[float]:
    """u = N / 2**50, N odd, for each (seed, domain, round, number)."""
    if not draws:
        return []
    table = torch.tensor(
        [
            (number, domain, begin & MASK32, begin >> 32, seed & MASK32, seed >> 32)
            for seed, domain, begin, number in draws
        ],
        dtype=torch.int64,
    ).t()
    words = philox4x32(table[:4], table[4:])
    values: list[float] = (uniforms(words[0], words[1]).to(torch.float64) * 2.0**-UNIFORM_BITS).tolist()
    return values
