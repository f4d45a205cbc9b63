"""exp and sums that are the same bits wherever they are computed."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.core.weights import LOWEST, exponents, tree_sum, weights


def test_close_to_exp() -> None:
    z = torch.cat((-torch.logspace(-18, math.log10(-LOWEST), 20000, dtype=torch.float64), torch.zeros(1)))
    expected = torch.tensor([math.exp(value) for value in z.tolist()], dtype=torch.float64)
    assert ((weights(z) - expected).abs() / expected).max() < 4e-14


def test_ends() -> None:
    values = [0.0, -0.0, LOWEST, math.nextafter(LOWEST, -math.inf), -1e300, -math.inf]
    z = torch.tensor(values, dtype=torch.float64)
    assert weights(z).tolist()[:2] == [1.0, 1.0]
    assert weights(z)[2] > 0.0
    assert weights(z).tolist()[3:] == [0.0, 0.0, 0.0]


def test_place_does_not_matter() -> None:
    """Every tail length and offset of the vector loops gives the same bits as one element alone."""
    z = -torch.rand(300, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 30
    alone = torch.cat([weights(z[i : i + 1]) for i in range(300)])
    for start in range(20):
        for length in (1, 2, 3, 7, 8, 9, 31, 64, 250):
            assert torch.equal(weights(z[start : start + length]), alone[start : start + length])
    assert torch.equal(weights(z.reshape(20, 15)).reshape(-1), alone)


def test_argument_is_left_alone() -> None:
    z = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    weights(z)
    assert z.tolist() == [-1.0, -2.0]


def test_exponents() -> None:
    z = exponents(torch.tensor([1.0, 3.0]), torch.tensor(3.0), torch.tensor(0.5, dtype=torch.float64))
    assert z.dtype == torch.float64
    assert z.tolist() == [-4.0, 0.0]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 128, 1000])
def test_tree_sum(size: int) -> None:
    values = torch.rand(4, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    before = values.clone()
    total = tree_sum(values)
    assert total.shape == (4, 1)
    assert torch.allclose(total[:, 0], values.sum(1), rtol=1e-14, atol=0)
    assert torch.equal(values, before)
    for row in range(4):
        assert torch.equal(tree_sum(values[row : row + 1]), total[row : row + 1])
