"""The integer logarithm: how exact, and that it is monotone."""

from __future__ import annotations

import random
from decimal import Decimal

import torch

from outrider.core import exponential
from outrider.core.exponential import FRACTION_BITS, UNIFORM_BITS, negative_log, to_float, uniforms
from tests.unit.core import reference_noise

LARGEST = 2**UNIFORM_BITS - 1


def interesting_numerators() -> list[int]:
    """Both ends, both sides of every power of two and of every table interval, and random ones."""
    draw = random.Random(2)
    values = {1, 3, 5, 7, LARGEST, LARGEST - 2, LARGEST - 4}
    for power in range(1, UNIFORM_BITS):
        values.update((2**power - 1, 2**power + 1))
    for index in range(4096):
        edge = (4096 + index) << 37
        values.update((edge - 1, edge + 1))
    values.update(draw.getrandbits(draw.randint(1, UNIFORM_BITS)) | 1 for _ in range(3000))
    return sorted(values)


def test_accuracy() -> None:
    numerators = interesting_numerators()
    fixed = negative_log(torch.tensor(numerators)).tolist()
    unit = Decimal(2) ** -FRACTION_BITS
    for numerator, value in zip(numerators, fixed, strict=True):
        true = reference_noise.negative_log(numerator)
        error = abs(value * unit - true)
        allowed = 2 if numerator > 2 ** (UNIFORM_BITS - 1) else 32
        assert error <= allowed * unit, numerator
        # Half of the last unit of float64 comes on top once it is converted.
        assert error <= true * Decimal(2) ** -44 or numerator > LARGEST - 2**20, numerator


def test_equals_the_recipe_in_plain_python() -> None:
    numerators = interesting_numerators()
    table = reference_noise.logarithm_table()
    expected = [reference_noise.fixed_negative_log(numerator, table) for numerator in numerators]
    assert negative_log(torch.tensor(numerators)).tolist() == expected
    assert table[-1] == exponential._LN2 == 99893036290645747


def test_the_ends_are_exact_to_the_last_unit() -> None:
    smallest, largest = negative_log(torch.tensor([LARGEST, 1])).tolist()
    assert smallest == 2 ** (FRACTION_BITS - UNIFORM_BITS)  # u = 1 - 2**-50
    assert abs(largest * 2.0**-FRACTION_BITS - 34.657359027997264) < 1e-14  # 50 ln 2
    assert largest < 2**63


def test_strictly_decreasing() -> None:
    """Neighbours around every edge of the table and every power of two, and over all sampled numerators."""
    numerators = torch.tensor(interesting_numerators())
    values = negative_log(numerators)
    assert (values.diff() < 0).all()
    inner = numerators[(numerators > 3) & (numerators < LARGEST - 1)]
    here = negative_log(inner)
    assert (negative_log(inner - 2) > here).all()
    assert (negative_log(inner + 2) < here).all()


def test_reduction_stays_within_its_bounds() -> None:
    """No product of the algorithm leaves 63 bits: the remainder is as small as its comment says."""
    reciprocals, logarithms = exponential._tables(torch.device("cpu"))
    starts = torch.arange(4096, 8192) << 37
    for f in (starts, starts + (1 << 37) - 1):
        remainder = f * reciprocals - (1 << 62)
        assert remainder.abs().max() <= 1 << 50
    assert reciprocals[-1] == 4096
    assert logarithms[-1] == 0


def test_float_is_the_nearest() -> None:
    draw = random.Random(3)
    values = [draw.getrandbits(draw.randint(1, 63)) for _ in range(4000)]
    values += [2**53 + 1, 2**54 + 2, 2**54 + 6, 2**63 - 1, 0, 1]
    floats = to_float(torch.tensor(values)).tolist()
    # Python converts integers to the nearest float, ties to even; the scale is a power of two.
    assert floats == [float(value) * 2.0**-FRACTION_BITS for value in values]


def test_uniforms_use_all_of_the_first_word_and_17_bits_of_the_second() -> None:
    high = torch.tensor([0, 0xFFFFFFFF, 0, 0x80000000])
    low = torch.tensor([0, 0xFFFFFFFF, 0xFFFFFFFF, 0x7FFF])
    assert uniforms(high, low).tolist() == [1, LARGEST, 2**18 - 1, 2**49 + 1]


def test_bits_do_not_depend_on_shape() -> None:
    numerators = torch.tensor(interesting_numerators()[:3000])
    together = to_float(negative_log(numerators))
    assert torch.equal(to_float(negative_log(numerators.reshape(3, 1000))).reshape(-1), together)
    for index in (0, 1, 77, 2999):
        assert torch.equal(to_float(negative_log(numerators[index : index + 1])), together[index : index + 1])
