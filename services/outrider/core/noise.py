"""The noise of coupled sampling: E(seed, t, x) ~ Exp(1), independent over positions t and vocabulary ids x.

A function of these three numbers alone, in integer arithmetic, so drafter and verifier, CPU and GPU, any
batch and any subset of ids see the same bits. docs/noise.md is the specification, with test vectors.

Ids come in groups of 256. The least value of a group, and the id that has it, are drawn first; the others
lie above it by an Exp(1) of their own (an exponential has no memory):

    E(x) = M(group)            if x is its group's least
    E(x) = M(group) + A(x)     otherwise,         M ~ Exp(256), A ~ Exp(1).

That is exactly 256 independent Exp(1). Its use: M bounds all ids of a group from below, so that a pick over
a vocabulary of 49,152 needs 192 draws and the few ids that can still win, not 49,152 draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.exponential import negative_log, to_float, uniforms
from outrider.core.philox import MASK32, philox4x32

GROUP_BITS = 8
GROUP_SIZE = 1 << GROUP_BITS

# Word 1 of the counter: what the draw is for. Other rules take other numbers, and so share no bits.
DOMAIN_GROUP = 0
DOMAIN_TOKEN = 1


def streams(rows: Sequence[tuple[int, int]], device: torch.device | None = None) -> torch.Tensor:
    """The generator's inputs for each (seed, position).

    Args:
        rows: seeds in [0, 2**64), positions in [0, 2**64).

    Returns:
        int64 [4, R]: seed low and high, position low and high, 32 bits each.
    """
    values = [(seed & MASK32, seed >> 32, position & MASK32, position >> 32) for seed, position in rows]
    return torch.tensor(values, dtype=torch.int64, device=device).view(-1, 4).t()


def exponentials(stream: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """E for each column of `stream` and the id at the same place.

    Args:
        stream: int64 [4, *shape], or broadcastable to it: columns of `streams`.
        ids: int64, of a shape broadcastable with that one; vocabulary ids in [0, 2**32).

    Returns:
        float64 [*shape], above 0.
    """
    ids = ids + torch.zeros_like(stream[0])  # to their common shape
    domains = torch.tensor((DOMAIN_GROUP, DOMAIN_TOKEN), device=ids.device).view(2, *(1,) * ids.dim())
    words = _words(stream.unsqueeze(1), torch.stack((ids >> GROUP_BITS, ids)), domains)
    values = to_float(negative_log(uniforms(words[0], words[1])))
    is_least = (words[2, 0] & (GROUP_SIZE - 1)) == (ids & (GROUP_SIZE - 1))
    return _above(values[0] * (1.0 / GROUP_SIZE), is_least, values[1])


@dataclass(frozen=True, slots=True)
class FirstDraws:
    """What is drawn before it is known which ids matter: for R streams, the least of each of G groups."""

    stream: torch.Tensor  # int64 [4, R]
    least: torch.Tensor  # float64 [R, G]: the least E of each group
    least_ids: torch.Tensor  # int64 [R, G]: the id that has it
    best: torch.Tensor  # float64 [R]: E of one id a row

    @classmethod
    def of(cls, stream: torch.Tensor, groups: int, ids: torch.Tensor) -> FirstDraws:
        """Draw for the first `groups` groups, and for one id of each stream (`ids`, int64 [R])."""
        numbers = torch.arange(groups, device=ids.device).expand(len(ids), groups)
        domains = torch.full((groups + 1,), DOMAIN_GROUP, device=ids.device)
        domains[-1] = DOMAIN_TOKEN
        words = _words(stream[:, :, None], torch.cat((numbers, ids[:, None]), 1), domains)
        values = to_float(negative_log(uniforms(words[0], words[1])))
        least = values[:, :-1] * (1.0 / GROUP_SIZE)
        least_ids = (numbers << GROUP_BITS) + (words[2, :, :-1] & (GROUP_SIZE - 1))
        rows, own = torch.arange(len(ids), device=ids.device), ids >> GROUP_BITS
        best = _above(least[rows, own], least_ids[rows, own] == ids, values[:, -1])
        return cls(stream, least, least_ids, best)

    def exponentials(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """E for the streams `rows` and the ids at the same places, int64 [n] each: float64 [n]."""
        words = _words(self.stream[:, rows], ids, torch.tensor(DOMAIN_TOKEN, device=ids.device))
        own = to_float(negative_log(uniforms(words[0], words[1])))
        groups = ids >> GROUP_BITS
        return _above(self.least[rows, groups], self.least_ids[rows, groups] == ids, own)


def _above(least: torch.Tensor, is_least: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return torch.where(is_least, least, least + own)


def _words(stream: torch.Tensor, numbers: torch.Tensor, domains: torch.Tensor) -> torch.Tensor:
    """Philox words [4, *shape]: stream [4, ...] and domains [...] broadcast to numbers [*shape]."""
    shape = numbers.shape
    counter = (numbers, domains.expand(shape), stream[2].expand(shape), stream[3].expand(shape))
    return philox4x32(torch.stack(counter), stream[:2])
