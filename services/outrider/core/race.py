"""The race of exponentials: argmin over x of E(seed, t, x) / prob(x), without looking at all x.

The least noise M of each group of ids is known before the ids' own noise is. Once some token's score s is
known, an id x can win only if M(group of x) / prob(x) <= s. That leaves a hundred or so of 49,152 ids, and
only these are evaluated, exactly. Bounds are approximate but err on the safe side; the result is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.logit_rows import LogitRows
from outrider.core.noise import GROUP_BITS, FirstDraws
from outrider.core.truncation import Kept
from outrider.core.weights import exponents, weights

_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Race:
    """A race in each of R rows."""

    rows: LogitRows
    draws: FirstDraws  # of the same rows
    temperatures: torch.Tensor  # float64 [R]

    def open_entries(self, which: Sequence[int]) -> Kept:
        """Tokens that may win in those rows that truncate nothing."""
        picked = torch.tensor(which, device=self.temperatures.device)
        part, temperature = self.rows.select(picked), self.temperatures[picked, None]
        least = self.draws.least[picked]
        at_winner = part.at(
            torch.arange(len(part), device=picked.device)[:, None], self.draws.least_ids[picked]
        )
        scores = least / exponents(at_winner, part.best[:, None], temperature).exp_()
        bound = torch.minimum(self.draws.best[picked], scores.amin(1) * (1.0 + _SLACK))
        reach = temperature * (least / bound[:, None]).log_()
        best = part.best[:, None].to(torch.float64)
        limits = best + reach - _SLACK * (best.abs() + reach.abs() + temperature)
        found, ids = part.at_least(limits.to(torch.float32))
        z = exponents(part.at(found, ids), part.best[found], temperature[found, 0])
        return Kept(picked[found], ids, weights(z))

    def pruned(self, kept: Kept) -> Kept:
        """Those of `kept` that may win; the most probable token of each row must be among them."""
        least = self.draws.least[kept.rows, kept.ids >> GROUP_BITS]
        return kept.where(least <= self.draws.best[kept.rows] * kept.weights * (1.0 + _SLACK))

    def winners(self, kept: Kept) -> torch.Tensor:
        """The winner of each row, int64 [R]; of equal scores, the lowest id."""
        scores = self.draws.exponentials(kept.rows, kept.ids) / kept.weights
        best = scores.new_full((len(self.rows),), float("inf"))
        best.scatter_reduce_(0, kept.rows, scores, "amin")
        first = scores == best[kept.rows]
        ids = kept.ids.new_full((len(self.rows),), torch.iinfo(torch.int64).max)
        return ids.scatter_reduce_(0, kept.rows[first], kept.ids[first], "amin")
