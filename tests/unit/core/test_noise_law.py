"""That the noise is Exp(1), independent, at fixed seeds. Deterministic: a p-value here never changes."""

from __future__ import annotations

import torch
from scipy import stats

from outrider.core.noise import GROUP_SIZE, FirstDraws, exponentials, streams

SIZE = 4 * GROUP_SIZE
POSITIONS = 400
ACCEPTABLE = 1e-3


def table(seed: int = 2024) -> torch.Tensor:
    """[POSITIONS, SIZE] values."""
    return exponentials(
        streams([(seed, position) for position in range(POSITIONS)])[:, :, None], torch.arange(SIZE)
    )


def test_every_value_is_exponential() -> None:
    values = table().reshape(-1).numpy()
    assert stats.kstest(values, "expon").pvalue > ACCEPTABLE


def test_each_column_and_each_row_is_exponential() -> None:
    """Columns are ids (least ones of their group included), rows are positions; Bonferroni over all."""
    values = table().numpy()
    columns = [stats.kstest(values[:, index], "expon").pvalue for index in range(0, SIZE, 8)]
    rows = [stats.kstest(values[index], "expon").pvalue for index in range(0, POSITIONS, 8)]
    assert min(columns) > ACCEPTABLE / len(columns)
    assert min(rows) > ACCEPTABLE / len(rows)


def test_small_values_too() -> None:
    """What decides races lies near 0: the lowest thousandth has the right size and is uniform."""
    values = torch.cat([table(seed).reshape(-1) for seed in range(4)])
    edge = 1e-3
    low = values[values < edge].numpy()
    assert (
        stats.binomtest(len(low), len(values), 1 - torch.exp(torch.tensor(-edge)).item()).pvalue > ACCEPTABLE
    )
    assert stats.kstest(low / edge, "uniform").pvalue > ACCEPTABLE


def test_neighbours_are_independent() -> None:
    """Pairs (in a group, over groups, positions, seeds) fall evenly into a 10 x 10 grid of quantiles."""
    values = torch.exp(-table())
    other_seed = torch.exp(-table(2025))
    pairs = {
        "same group": (values[:, 0::2], values[:, 1::2]),
        "next group": (values[:, :GROUP_SIZE], values[:, GROUP_SIZE : 2 * GROUP_SIZE]),
        "next position": (values[0::2], values[1::2]),
        "next seed": (values, other_seed),
    }
    for name, (left, right) in pairs.items():
        cells = (left.reshape(-1) * 10).long() * 10 + (right.reshape(-1) * 10).long()
        counts = torch.bincount(cells, minlength=100).numpy()
        assert stats.chisquare(counts).pvalue > ACCEPTABLE, name


def test_least_of_a_group_is_uniform_over_it_and_exponential() -> None:
    rows = [(seed, 5) for seed in range(200)]
    draws = FirstDraws.of(streams(rows), 64, torch.zeros(len(rows), dtype=torch.int64))
    counts = torch.bincount((draws.least_ids % GROUP_SIZE).reshape(-1), minlength=GROUP_SIZE).numpy()
    assert stats.chisquare(counts).pvalue > ACCEPTABLE
    assert stats.kstest(draws.least.reshape(-1).numpy() * GROUP_SIZE, "expon").pvalue > ACCEPTABLE


def test_gap_to_the_second_least_is_exponential() -> None:
    """Below the least, the other 255 are as if fresh: the gap is Exp(255)."""
    values = table().view(POSITIONS, 4, GROUP_SIZE)
    two = values.topk(2, dim=2, largest=False).values
    gaps = (two[..., 1] - two[..., 0]).reshape(-1).numpy() * (GROUP_SIZE - 1)
    assert stats.kstest(gaps, "expon").pvalue > ACCEPTABLE
