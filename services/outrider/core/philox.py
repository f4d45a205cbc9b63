"""Philox4x32-10 on int64 tensors: a keyed bijection of counters, used as a random function.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC'11), and its reference
implementation Random123, whose known-answer vectors our tests use. Integer multiplication, shift, xor
and mask only, so every device, torch version and tensor shape gives the same bits.
"""

from __future__ import annotations

from functools import lru_cache

import torch

ROUNDS = 10
MASK32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Four 32-bit words for each counter.

    Args:
        counter: int64 [4, *shape], each value in [0, 2**32).
        key: int64 [2, *shape] (or broadcastable to it), each value in [0, 2**32).

    Returns:
        int64 [4, *shape], each value in [0, 2**32).
    """
    multipliers, bumps = _constants(counter.device)
    trailing = (1,) * (counter.dim() - 1)
    multipliers = multipliers.view(2, *trailing)
    keys = (bumps.view(ROUNDS, 2, *trailing) + key).bitwise_and_(MASK32).unbind(0)

    # Words 0 and 2 are multiplied, words 1 and 3 only mixed in; each pair is one tensor, which halves the
    # number of tensor operations. A product wraps modulo 2**64, which keeps both of its halves; bits above
    # the lowest 32 are cleared just before the next multiplication.
    active = counter[0::2]
    passive = counter[1::2].flip(0)
    for round_key in keys:
        product = active * multipliers
        active = (product >> 32).bitwise_xor_(passive).flip(0).bitwise_xor_(round_key).bitwise_and_(MASK32)
        passive = product
    low = passive.flip(0).bitwise_and_(MASK32)
    return torch.stack((active[0], low[0], active[1], low[1]))


@lru_cache(maxsize=8)
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Multipliers [2], and what each round adds to the key [ROUNDS, 2]."""
    bumps = [[index * step for step in _WEYL] for index in range(ROUNDS)]
    return torch.tensor(_MULTIPLIERS, device=device), torch.tensor(bumps, device=device)
