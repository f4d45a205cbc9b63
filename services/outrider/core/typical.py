"""Locally typical sampling (Meister et al., arXiv 2202.00666), the last filter.

Keeps the tokens whose surprise -log(prob) is nearest to the entropy of the distribution that the other
filters leave: the fewest, nearest first, that reach the mass typical_p. Of equally near ones the more
probable comes first, then the lower id.
"""

from __future__ import annotations

import torch

from outrider.core.weights import UNIT


def is_typical(
    rows: torch.Tensor, exponents: torch.Tensor, weights: torch.Tensor, typical_p: torch.Tensor
) -> torch.Tensor:
    """Which tokens to keep.

    With z = (logit - best logit) / temperature and weights exp(z), surprise less entropy is A - z, where A is
    the mean of z: no logarithm is needed. The sums are of integers, so that they depend on no order.

    Args:
        rows: int64 [n], ascending: the row of each token; a row's tokens stand in the order of their rank.
        exponents: float64 [n]: z, at most 0, finite.
        weights: float64 [n]: exp(z).
        typical_p: float64 [R]; 1 keeps all of a row.

    Returns:
        bool [n].
    """
    starts = torch.searchsorted(rows, torch.arange(len(typical_p) + 1, device=rows.device))
    units = (weights * UNIT).round_().to(torch.int64)
    moments = (weights * exponents * UNIT).round_().to(torch.int64)  # each at least -UNIT / e
    total = _sums(units)[starts].diff().to(torch.float64)
    mean = _sums(moments)[starts].diff().to(torch.float64) / total
    order = (mean[rows] - exponents).abs_().argsort(stable=True)
    order = order[rows[order].argsort(stable=True)]
    sums = _sums(units[order])
    before = (sums[:-1] - sums[starts][rows]).to(torch.float64)
    inside = (before < (typical_p * total)[rows]) | (typical_p == 1.0)[rows]
    kept = torch.empty_like(inside)
    kept[order] = inside
    return kept


def _sums(values: torch.Tensor) -> torch.Tensor:
    """Sums of the first 0, 1, ... values; they may wrap, differences within a row do not."""
    return torch.cat((values.new_zeros(1), values.cumsum(0)))
