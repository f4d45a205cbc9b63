"""exp and sums whose bits do not depend on vector width, place in a tensor, or device.

torch's own `exp` and `sum` may treat an element differently by where it stands (the tail of a vector loop,
the split between threads). These use only additions and multiplications, one tensor operation each, which
IEEE 754 rounds in one way.
"""

from __future__ import annotations

import math

import torch

LOWEST = -708.0
"""Below this exponent a weight is 0: it could never win against the weight 1 of the most probable token."""

UNIT = 2.0**40
"""Masses are sums of integers, weights in units of 1 / UNIT, so that they depend on no order of summation."""

_LN2_HIGH = float.fromhex("0x1.62e42fefa3800p-1")  # 41 bits: times a small integer it is exact
_LN2_LOW = 0.6931471805599453094172321214581765680755 - _LN2_HIGH
_HALVINGS = 4
_DEGREE = 6
_COEFFICIENTS = tuple(1.0 / math.factorial(power) for power in range(_DEGREE + 1))


def weights(exponents: torch.Tensor) -> torch.Tensor:
    """exp(z) for z <= 0, relative error below 4e-14; 0 below `LOWEST`. exp(0) is 1 exactly.

    Args:
        exponents: float64, any shape; -inf is allowed.
    """
    z = exponents.clamp(min=LOWEST)
    twos = (z * (1.0 / math.log(2.0))).round_()
    z.sub_(twos * _LN2_HIGH).sub_(twos * _LN2_LOW).mul_(2.0**-_HALVINGS)
    result = torch.full_like(z, _COEFFICIENTS[-1])
    for coefficient in _COEFFICIENTS[-2::-1]:
        result.mul_(z).add_(coefficient)
    for _ in range(_HALVINGS):
        result.mul_(result)
    powers = twos.to(torch.int64).add_(1023).bitwise_left_shift_(52).view(torch.float64)
    return result.mul_(powers).masked_fill_(exponents < LOWEST, 0.0)


def exponents(logits: torch.Tensor, best: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """(logit - best logit) / temperature in float64: what `weights` takes.

    `temperatures` is a tensor even if it is one number: CUDA divides by a number through its reciprocal.
    """
    return (logits.to(torch.float64) - best.to(torch.float64)).div_(temperatures)


def tree_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension in one fixed order, keeping that dimension."""
    while (size := values.shape[-1]) > 1:
        half = (size + 1) // 2
        folded = values[..., :half].clone()
        folded[..., : size - half].add_(values[..., half:])
        values = folded
    return values
