"""The noise of coupled sampling: E(seed, t, x) ~ Exp(1), independent over positions t and vocabulary ids x.

A function of these three numbers alone, in integer arithmetic, so drafter and verifier, CPU and GPU, any
batch and any subset of ids see the same bits. docs/noise.md is the specification, with test vectors.

Ids come in groups of 128. The least value of a group, and the id that has it, are drawn first; the others
lie above it by an Exp(1) of their own (an exponential has no memory):

    E(x) = M(group)            if x is its group's least
    E(x) = M(group) + A(x)     otherwise,         M ~ Exp(128), A ~ Exp(1).

That is exactly 128 independent Exp(1). Its use: M bounds all ids of a group from below, so that a pick over
a vocabulary of 49,152 needs 384 draws and the few ids that can still win, not 49,152 draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core.exponential import negative_log, to_float, uniforms
from outrider.core.philox import MASK32, philox4x32

GROUP_BITS = 7
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
        ids: int64 [*shape], vocabulary ids in [0, 2**32).

    Returns:
        float64 [*shape], above 0.
    """
    shape = torch.broadcast_shapes(stream.shape[1:], ids.shape)
    ids = ids.expand(shape)
    groups = ids >> GROUP_BITS
    words = _words(stream.unsqueeze(1), torch.stack((groups, ids)), (DOMAIN_GROUP, DOMAIN_TOKEN))
    values = to_float(negative_log(uniforms(words[0], words[1])))
    least = values[0] * (1.0 / GROUP_SIZE)
    is_least = (words[2, 0] & (GROUP_SIZE - 1)) == (ids & (GROUP_SIZE - 1))
    return torch.where(is_least, least, least + values[1])


def group_minima(stream: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The least E of each of the first `groups` groups of ids, and the id that has it.

    Args:
        stream: int64 [4, R].

    Returns:
        float64 [R, groups] and int64 [R, groups].
    """
    numbers = torch.arange(groups, device=stream.device).expand(1, stream.shape[1], groups)
    words = _words(stream[:, None, :, None], numbers, (DOMAIN_GROUP,))
    least = to_float(negative_log(uniforms(words[0, 0], words[1, 0]))).mul_(1.0 / GROUP_SIZE)
    return least, (numbers[0] << GROUP_BITS) + (words[2, 0] & (GROUP_SIZE - 1))


def _words(stream: torch.Tensor, numbers: torch.Tensor, domains: tuple[int, ...]) -> torch.Tensor:
    """Philox words [4, len(domains), *shape] for numbers [len(domains), *shape]."""
    domain = torch.tensor(domains, device=numbers.device).view(-1, *(1,) * (numbers.dim() - 1))
    counter = torch.stack(
        (
            numbers,
            domain.expand(numbers.shape),
            stream[2].expand(numbers.shape),
            stream[3].expand(numbers.shape),
        )
    )
    return philox4x32(counter, stream[:2])
