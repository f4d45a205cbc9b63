"""Locally typical sampling (Meister et al., arXiv 2202.00666), the last filter.

Keeps the tokens whose surprise -log(prob) is nearest to the entropy of the distribution that the other
filters leave: the fewest, nearest first and of equally near ones the lower id first, that reach the mass
typical_p.

With z = (logit - best logit) / temperature and weights exp(z), surprise less entropy is A - z, where A is the
mean of z: no logarithm is needed. All sums are of integers, so that they depend on no order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.core.weights import LOWEST, UNIT, weights

_NEAR = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Distances within which enough is looked for; the result does not depend on them."""


@dataclass(frozen=True, slots=True)
class Centre:
    """What a distribution's tokens are measured by."""

    mean: float  # A
    total: float  # mass, in units of 1 / UNIT
    lowest: float  # a z below which nothing is kept


def centre_of(exponents: torch.Tensor, typical_p: float) -> Centre:
    """Of a whole row that no other filter has cut: float64 [V], -inf allowed."""
    own = weights(exponents)
    units = _units(own)
    total = float(units.sum())
    mean = float(_units(own * exponents.clamp(min=LOWEST)).sum()) / total
    distance = (exponents - mean).abs_()
    for near in _NEAR:
        if float(torch.where(distance <= near, units, 0).sum()) >= typical_p * total:
            return Centre(mean, total, mean - near)
    return Centre(mean, total, float("-inf"))


def centres_of(rows: torch.Tensor, exponents: torch.Tensor, own: torch.Tensor, count: int) -> list[Centre]:
    """Of `count` rows, from all tokens that the other filters leave in them.

    Args:
        rows: int64 [n]: the row of each token.
        exponents: float64 [n]: z, finite.
        own: float64 [n]: the weights.
    """
    totals = _units(own).new_zeros(count).index_add_(0, rows, _units(own)).tolist()
    moments = _units(own * exponents)  # each at least -UNIT / e
    sums = moments.new_zeros(count).index_add_(0, rows, moments).tolist()
    return [
        Centre(float(moment) / float(total) if total else 0.0, float(total), float("-inf"))
        for moment, total in zip(sums, totals, strict=True)
    ]


def is_typical(
    rows: torch.Tensor,
    ids: torch.Tensor,
    exponents: torch.Tensor,
    own: torch.Tensor,
    centres: list[tuple[Centre, float]],
) -> torch.Tensor:
    """Which tokens to keep, bool [n].

    Args:
        rows: int64 [n]: the row of each token.
        ids: int64 [n]: its id.
        exponents: float64 [n]: z, finite.
        own: float64 [n]: the weights.
        centres: of each row, with its typical_p; 1 keeps all.
    """
    values = [(centre.mean, typical_p * centre.total, typical_p) for centre, typical_p in centres]
    mean, limit, typical = torch.tensor(values, dtype=torch.float64, device=rows.device).unbind(1)
    distance = (mean[rows] - exponents).abs_()
    order = ids.argsort(stable=True)
    order = order[distance[order].argsort(stable=True)]
    order = order[rows[order].argsort(stable=True)]
    ordered = rows[order]
    units = _units(own[order])
    sums = torch.cat((units.new_zeros(1), units.cumsum(0)))  # may wrap; differences within a row do not
    starts = torch.searchsorted(ordered, torch.arange(len(centres), device=rows.device))
    before = (sums[:-1] - sums[starts][ordered]).to(torch.float64)
    kept = torch.empty_like(rows, dtype=torch.bool)
    kept[order] = (before < limit[ordered]) | (typical == 1.0)[ordered]
    return kept


def _units(values: torch.Tensor) -> torch.Tensor:
    return (values * UNIT).round_().to(torch.int64)
