"""The race of exponentials: argmin over x of E(seed, t, x) / prob(x), without looking at all x.

The least noise M of each group of ids is known before the ids' own noise is. Once some token's score s is
known, an id x can win only if M(group of x) / prob(x) <= s. That leaves a hundred or so of 49,152 ids, and
only these are evaluated, exactly. Bounds are approximate but err on the safe side; the result is exact.
"""

from __future__ import annotations

import torch

from outrider.core.logit_rows import LogitRows
from outrider.core.noise import GROUP_BITS, FirstDraws
from outrider.core.truncation import Kept
from outrider.core.weights import exponents, weights

_SLACK = 1e-6


def contenders(rows: LogitRows, draws: FirstDraws, temperatures: torch.Tensor) -> Kept:
    """The tokens that may win in rows that truncate nothing: a few of the whole vocabulary.

    Args:
        draws: of the same rows, with the most probable token as the one id a row.
        temperatures: float64 [R].
    """
    temperature, best = temperatures[:, None], rows.best[:, None].to(torch.float64)
    at_least_ids = rows.at(torch.arange(len(rows), device=best.device)[:, None], draws.least_ids)
    scores = draws.least / exponents(at_least_ids, best, temperature).exp_()
    bound = torch.minimum(draws.best, scores.amin(1).mul_(1.0 + _SLACK))
    return within(rows, draws, temperatures, bound)


def within(rows: LogitRows, draws: FirstDraws, temperatures: torch.Tensor, bounds: torch.Tensor) -> Kept:
    """The tokens whose scores may be within a bound, in rows that truncate nothing.

    Args:
        draws: of the same rows.
        temperatures: float64 [R].
        bounds: float64 [R], above 0; inf: all tokens with a finite logit.
    """
    temperature, best = temperatures[:, None], rows.best[:, None].to(torch.float64)
    # Solved for the logit: M / exp((logit - best) / temperature) <= bound.
    reach = (draws.least / bounds[:, None]).log_().mul_(temperature)
    limits = best + reach - _SLACK * (best.abs() + reach.abs() + temperature)
    found, ids = rows.at_least(limits.to(torch.float32).clamp_(min=torch.finfo(torch.float32).min))
    return Kept(found, ids, weights(exponents(rows.at(found, ids), rows.best[found], temperatures[found])))


def pruned(kept: Kept, draws: FirstDraws, own_weights: torch.Tensor) -> Kept:
    """Those of `kept` that may win.

    Args:
        draws: of the same rows, with a kept token as the one id a row.
        own_weights: float64 [R], of these tokens.
    """
    return pruned_to(kept, draws, draws.best / own_weights)


def pruned_to(kept: Kept, draws: FirstDraws, bounds: torch.Tensor) -> Kept:
    """Those of `kept` whose scores may be within the bounds of their rows, float64 [R]."""
    least = draws.least[kept.rows, kept.ids >> GROUP_BITS]
    return kept.where(least <= bounds[kept.rows] * kept.weights * (1.0 + _SLACK))


def winners(kept: Kept, draws: FirstDraws) -> torch.Tensor:
    """The winner of each row, int64 [R]; of equal scores, the lowest id. Each row must have an entry."""
    count = len(draws.best)
    if len(kept.ids) == count:
        return kept.ids  # no rivals anywhere
    scores = draws.exponentials(kept.rows, kept.ids) / kept.weights
    best = scores.new_full((count,), float("inf")).scatter_reduce_(0, kept.rows, scores, "amin")
    first = scores == best[kept.rows]
    ids = kept.ids.new_full((count,), torch.iinfo(torch.int64).max)
    return ids.scatter_reduce_(0, kept.rows[first], kept.ids[first], "amin")
