"""-ln(u) in integer arithmetic: from random words to Exp(1), the same bits everywhere.

u = N / 2**50 with N odd, so u is never 0 or 1. N is normalised to f * 2**-e with f in [1/2, 1); a table of
4096 reciprocals C ~ 1/f and their logarithms leaves a remainder r = f * C - 1 (exact in 62 bits, and
|r| <= 2**-12), and four terms of the series of ln(1 + r) do the rest: -ln u = e ln 2 + ln C - ln(1 + r).
"""

from __future__ import annotations

from functools import lru_cache

import torch

UNIFORM_BITS = 50
"""u is an odd multiple of 2**-UNIFORM_BITS."""
FRACTION_BITS = 57
"""Fractional bits of the fixed-point result."""

_INDEX_BITS = 12
_ENTRIES = 1 << _INDEX_BITS
_EXPONENT = 1023 + UNIFORM_BITS - 1  # exponent field of a float64 in [2**49, 2**50)
_MANTISSA = (1 << 52) - 1
_LEADING = 1 << (UNIFORM_BITS - 1)
_ONE = 1 << 62
_THIRD = round((1 << 31) / 3)
_LOW = (1 << 31) - 1


def uniforms(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """N of u = N / 2**50, odd, from two 32-bit words (all of `high`, the upper 17 bits of `low`)."""
    return (high << 18).bitwise_or_(low >> 14).bitwise_or_(1)


def negative_log(numerators: torch.Tensor) -> torch.Tensor:
    """-ln(N / 2**50) as a fixed-point number with 57 fractional bits.

    Within 2**-52 of the true value (2**-56 for u > 1/2), and strictly decreasing in N.

    Args:
        numerators: int64, odd, in [1, 2**50).

    Returns:
        int64 of the same shape, in [2**7, 2**63).
    """
    reciprocals, logarithms = _tables(numerators.device)
    # A float64 holds N exactly, normalised: its fields are the leading-zero count and f.
    bits = numerators.to(torch.float64).view(torch.int64)
    index = (bits >> (52 - _INDEX_BITS)) & (_ENTRIES - 1)
    f = ((bits & _MANTISSA) >> (53 - UNIFORM_BITS)).bitwise_or_(_LEADING)
    r = (f * reciprocals[index]).sub_(_ONE)
    # r = upper * 2**-31 + lower * 2**-62 makes r * r exact enough without a product of more than 63 bits.
    upper = (r + (1 << 30)) >> 31
    lower = r - (upper << 31)
    square = upper * upper + ((upper * lower) >> 30)
    cubic = (((r >> 20) * _THIRD) >> 31) - (square >> 22)  # r/3 - r*r/4, 42 fractional bits
    log1p = r - (square >> 1) + ((cubic * (square >> 5)) >> 37)
    whole = (_EXPONENT - (bits >> 52)) * _LN2
    return whole + logarithms[index] - (log1p >> (62 - FRACTION_BITS))


def to_float(fixed: torch.Tensor) -> torch.Tensor:
    """A non-negative fixed-point number as float64, rounded once to nearest even.

    Both halves convert exactly, so the one rounding is that of an IEEE 754 addition, and no device's
    integer conversion has a say.
    """
    high = (fixed >> 31).to(torch.float64).mul_(2.0**31)
    return high.add_((fixed & _LOW).to(torch.float64)).mul_(2.0**-FRACTION_BITS)


def _logarithm_steps() -> list[int]:
    """ln(c / 4096) for c = 4096 ... 8192 with 100 fractional bits, from ln((c+1)/c) = 2 atanh(1/(2c+1))."""
    one = 1 << 100
    values = [0]
    for c in range(_ENTRIES, 2 * _ENTRIES):
        odd = 2 * c + 1
        power, total = one // odd, 0
        for n in (1, 3, 5, 7):
            total += power // n
            power //= odd * odd
        values.append(values[-1] + 2 * total)
    return values


def _rounded(value: int) -> int:
    shift = 100 - FRACTION_BITS
    return (value + (1 << (shift - 1))) >> shift


_LOGARITHMS = tuple(_rounded(value) for value in _logarithm_steps())
_LN2 = _LOGARITHMS[-1]


@lru_cache(maxsize=8)
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Reciprocals C of the middles of 4096 intervals (12 fractional bits), and ln(C / 4096)."""
    odds = range(2 * _ENTRIES + 1, 4 * _ENTRIES, 2)
    reciprocals = [((1 << 26) + odd // 2) // odd for odd in odds]
    return (
        torch.tensor(reciprocals, device=device),
        torch.tensor([_LOGARITHMS[c - _ENTRIES] for c in reciprocals], device=device),
    )
