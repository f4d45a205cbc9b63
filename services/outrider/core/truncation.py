"""Which tokens may be drawn: temperature, then min-p, top-k, top-p, as vLLM orders them, then typical-p.

The first three keep the first tokens of one ranking: by logit, and by the lower id among equal logits. So
top-k keeps exactly k tokens, top-p the fewest that reach its mass, and top-k 1 is greedy. Typical-p ranks
anew what they leave (core/typical.py).

Masses are sums of integers, so that they depend on no order of summation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.logit_rows import LogitRows
from outrider.core.params import SamplingParams
from outrider.core.typical import Centre, centre_of, centres_of, is_typical
from outrider.core.weights import UNIT, exponents, weights

_NO_TOP_K = 2**62
_SLACK = 1e-6
"""Relative error allowed to everything that is only a bound and is checked exactly afterwards."""
_MARGIN = 1e-4
"""The same for float32."""
_FIRST_RUNG, _RUNG = 2.0**-7, 2.0**-4
"""Where a nucleus is looked for: weights above (1 - top_p) / 128, then lower in steps of 16. Language models'
nuclei mostly end within the first or second step; the result does not depend on it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Tokens that may be drawn: one entry a token, ordered by row."""

    rows: torch.Tensor  # int64 [n]
    ids: torch.Tensor  # int64 [n]
    weights: torch.Tensor  # float64 [n]: prob relative to the row's most probable token

    def where(self, mask: torch.Tensor) -> Kept:
        """The entries that `mask` marks."""
        return Kept(self.rows[mask], self.ids[mask], self.weights[mask])


@dataclass(frozen=True, slots=True)
class Filters:
    """Parameters of the rows, as columns."""

    temperature: torch.Tensor  # float64 [R]
    min_p: torch.Tensor  # float64 [R]
    top_k: torch.Tensor  # int64 [R]; 0 is replaced by a number that no vocabulary has
    top_p: torch.Tensor  # float64 [R]

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> Filters:
        """The columns of `params`."""
        values = [(p.temperature, p.min_p, p.top_p) for p in params]
        numbers = torch.tensor(values, dtype=torch.float64, device=device).view(-1, 3)
        top_k = torch.tensor([p.top_k or _NO_TOP_K for p in params], device=device)
        return cls(numbers[:, 0], numbers[:, 1], top_k, numbers[:, 2])


def truncates(params: SamplingParams) -> bool:
    """Whether any token with a finite logit may be left out."""
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0 or params.typical_p < 1.0


def only_top_p(params: SamplingParams) -> bool:
    """Whether top-p is the only filter."""
    return _is_nucleus(params) and params.typical_p == 1.0


def _is_nucleus(params: SamplingParams) -> bool:
    """Whether nothing but top-p cuts the tail of the ranking."""
    return params.top_p < 1.0 and not params.top_k and not params.min_p


def surely_kept(rows: LogitRows, params: Sequence[SamplingParams], ids: torch.Tensor) -> list[bool]:
    """Whether one id of each row is kept by top-p, for rows with top-p alone. False: it may not be.

    Takes the mass of all tokens that are as probable or more, in float32 with a margin: a fraction of the
    work of finding the nucleus.
    """
    own = rows.at(torch.arange(len(rows), device=ids.device), ids)
    answers = []
    for index, row_params in enumerate(params):
        row = rows.row(index)
        mass = (row - rows.best[index]).div_(row_params.temperature).exp_()
        limit = mass.sum() * (row_params.top_p * (1.0 - _MARGIN))
        before = mass.masked_fill_(row < own[index], 0.0).sum() - mass[ids[index]]
        answers.append(bool(before < limit))
    return answers


def truncate(rows: LogitRows, params: Sequence[SamplingParams]) -> Kept:
    """The tokens that may be drawn from rows that all truncate."""
    filters = Filters.of(params, rows.table.device)
    bounds = torch.tensor(
        [_bound(rows, index, own) for index, own in enumerate(params)], device=rows.table.device
    )
    open_rows = [index for index, own in enumerate(params) if _is_nucleus(own)]
    totals = torch.zeros(len(rows), dtype=torch.float64, device=rows.table.device)
    if open_rows:
        _bound_nuclei(rows, filters, open_rows, totals, bounds)
    centres = _bound_typical(rows, filters, params, bounds)
    ranked, before, exact_totals = _rank(rows, filters, bounds)
    is_open = torch.zeros_like(totals, dtype=torch.bool)
    is_open[open_rows] = True
    totals = torch.where(is_open, totals, exact_totals)
    if open_rows:
        _settle_doubts(rows, filters, ranked, before, is_open, totals)
    limit = filters.top_p * totals
    inside = (before < limit[ranked.rows]) | (filters.top_p == 1.0)[ranked.rows]
    ranked = ranked.where(inside)
    return _typical(rows, filters, params, ranked, centres)


def _bound(rows: LogitRows, index: int, params: SamplingParams) -> float:
    """A logit that every token kept by min-p and top-k reaches; -inf if there is no such filter."""
    bound = -math.inf
    if params.min_p > 0.0:
        best = float(rows.best[index])
        reach = params.temperature * math.log(params.min_p)
        bound = best + reach - _SLACK * (abs(best) + abs(reach))
    if 0 < params.top_k <= rows.groups:
        # The k-th largest of the groups' maxima: at least k logits reach it.
        bound = max(bound, float(rows.maxima[index].topk(params.top_k).values[-1]))
    elif 0 < params.top_k < rows.table.shape[1]:
        bound = max(bound, float(rows.row(index).topk(params.top_k).values[-1]))
    return max(bound, torch.finfo(torch.float32).min)


def _bound_nuclei(
    rows: LogitRows, filters: Filters, open_rows: list[int], totals: torch.Tensor, bounds: torch.Tensor
) -> None:
    """For rows with top-p alone: their approximate total mass, and a logit below which nothing is kept.

    The total goes over the whole vocabulary, so torch's own exp and sum take it; the bound goes down until
    the mass above it is enough.
    """
    for index in open_rows:
        z = exponents(rows.row(index), rows.best[index], filters.temperature[index])
        totals[index] = z.exp_().sum() * UNIT
    rung = _FIRST_RUNG
    pending = torch.tensor(open_rows, device=bounds.device)
    while len(pending) and rung > 2.0**-60:
        reach = filters.temperature[pending] * ((1.0 - filters.top_p[pending]) * rung).log_()
        bounds[pending] = (rows.best[pending] + reach).to(torch.float32)
        part = rows.select(pending)
        found, ids = part.at_least(bounds[pending, None])
        z = exponents(part.at(found, ids), part.best[found], filters.temperature[pending][found])
        mass = torch.zeros(len(pending), dtype=torch.float64, device=bounds.device)
        mass.index_add_(0, found, weights(z) * UNIT)
        enough = mass > filters.top_p[pending] * totals[pending] * (1.0 + _SLACK)
        pending = pending[~enough]
        rung *= _RUNG
    bounds[pending] = torch.finfo(torch.float32).min


def _bound_typical(
    rows: LogitRows, filters: Filters, params: Sequence[SamplingParams], bounds: torch.Tensor
) -> dict[int, Centre]:
    """For rows with typical-p alone: what tokens are measured by, and a logit below which none is kept."""
    centres = {}
    for index, own in enumerate(params):
        if own.typical_p < 1.0 and not (own.top_k or own.min_p or own.top_p < 1.0):
            z = exponents(rows.row(index), rows.best[index], filters.temperature[index])
            centres[index] = centre = centre_of(z, own.typical_p)
            best, reach = float(rows.best[index]), own.temperature * centre.lowest
            if reach > -math.inf:
                bounds[index] = best + reach - _SLACK * (abs(best) + abs(reach))
    return centres


def _typical(
    rows: LogitRows,
    filters: Filters,
    params: Sequence[SamplingParams],
    kept: Kept,
    centres: dict[int, Centre],
) -> Kept:
    """Those that typical-p keeps too, in the same order. `centres`: where all of a row is not in `kept`."""
    if all(own.typical_p == 1.0 for own in params):
        return kept
    z = exponents(rows.at(kept.rows, kept.ids), rows.best[kept.rows], filters.temperature[kept.rows])
    found = centres_of(kept.rows, z, kept.weights, len(rows))
    measures = [(centres.get(index, found[index]), own.typical_p) for index, own in enumerate(params)]
    return kept.where(is_typical(kept.rows, kept.ids, z, kept.weights, measures))


def _rank(rows: LogitRows, filters: Filters, bounds: torch.Tensor) -> tuple[Kept, torch.Tensor, torch.Tensor]:
    """Tokens that min-p and top-k keep, ranked in each row; the mass ranked before each; each row's mass."""
    found, ids = rows.at_least(bounds[:, None])
    logits = rows.at(found, ids)
    kept = Kept(found, ids, weights(exponents(logits, rows.best[found], filters.temperature[found])))
    mask = kept.weights >= filters.min_p[found]
    kept, logits = kept.where(mask), logits[mask]
    kept = _ordered(kept, logits)
    numbers = torch.arange(len(rows) + 1, device=found.device)
    starts = torch.searchsorted(kept.rows, numbers)
    ranks = torch.arange(len(kept.rows), device=found.device) - starts[kept.rows]
    kept = kept.where(ranks < filters.top_k[kept.rows])
    starts = torch.searchsorted(kept.rows, numbers)
    units = (kept.weights * UNIT).round_().to(torch.int64)
    sums = torch.cat((units.new_zeros(1), units.cumsum(0)))  # may wrap; differences within a row do not
    at_starts = sums[starts]
    before = sums[:-1] - at_starts[kept.rows]
    return kept, before.to(torch.float64), at_starts.diff().to(torch.float64)


def _ordered(kept: Kept, logits: torch.Tensor) -> Kept:
    """Sorted by row, then by falling logit; equal logits stay in the order of their ids."""
    bits = (logits + 0.0).view(torch.int32).to(torch.int64)  # + 0.0 makes -0.0 equal to 0.0
    rising = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    order = torch.argsort((kept.rows << 33) - rising, stable=True)
    return Kept(kept.rows[order], kept.ids[order], kept.weights[order])


def _settle_doubts(
    rows: LogitRows,
    filters: Filters,
    ranked: Kept,
    before: torch.Tensor,
    is_open: torch.Tensor,
    totals: torch.Tensor,
) -> None:
    """Where an approximate total could decide wrongly, put the exact one in its place."""
    limit = (filters.top_p * totals)[ranked.rows]
    close = (before - limit).abs() <= _SLACK * totals[ranked.rows]
    doubtful = ranked.rows[close & is_open[ranked.rows]]
    for index in set(doubtful.tolist()):
        z = exponents(rows.row(index), rows.best[index], filters.temperature[index])
        totals[index] = (weights(z) * UNIT).round_().to(torch.int64).sum().to(torch.float64)
