"""The noise once more, from docs/noise.md alone: plain Python integers, and logarithms to 40 digits."""

from __future__ import annotations

from decimal import Decimal, localcontext

MASK = 0xFFFFFFFF
GROUP = 256


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & MASK,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & MASK,
        )
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def numerator(words: tuple[int, int, int, int]) -> int:
    """N of u = N / 2**50."""
    return (words[0] << 18) | (words[1] >> 14) | 1


def negative_log(n: int) -> Decimal:
    """-ln(n / 2**50)."""
    with localcontext() as context:
        context.prec = 40
        return -(Decimal(n) / 2**50).ln()


def logarithm_table() -> list[int]:
    """T[4096 .. 8191] and LN2 = T[8192], each ln(c / 4096) rounded to 57 fractional bits."""
    with localcontext() as context:
        context.prec = 40
        return [int(((Decimal(c) / 4096).ln() * 2**57).to_integral_value()) for c in range(4096, 8193)]


def fixed_negative_log(n: int, table: list[int]) -> int:
    """The integer recipe of docs/noise.md."""
    e = 50 - n.bit_length()
    f = n << e
    odd = 2 * (f >> 37) + 1
    c = (2**26 + odd // 2) // odd
    r = f * c - 2**62
    upper = (r + 2**30) >> 31
    lower = r - upper * 2**31
    square = upper * upper + ((upper * lower) >> 30)
    cubic = (((r >> 20) * 715827883) >> 31) - (square >> 22)
    log1p = r - (square >> 1) + ((cubic * (square >> 5)) >> 37)
    return e * table[-1] + table[c - 4096] - (log1p >> 5)


def draws(seed: int, position: int, token_id: int) -> tuple[int, int, int]:
    """N of the id's group, the group's least id, and N of the id itself."""
    key = (seed & MASK, seed >> 32)
    where = (position & MASK, position >> 32)
    group = token_id // GROUP
    words = philox((group, 0, *where), key)
    own = philox((token_id, 1, *where), key)
    return numerator(words), group * GROUP + words[2] % GROUP, numerator(own)


def exponential(seed: int, position: int, token_id: int) -> Decimal:
    group, least_id, own = draws(seed, position, token_id)
    least = negative_log(group) / GROUP
    return least if token_id == least_id else least + negative_log(own)
