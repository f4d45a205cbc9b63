"""The tokens most likely to be the target's coupled pick, and how likely: the siblings of a draft tree.

Target and drafter race with the same noise, so the drafter's own winner is its best guess, and its runner-up
is what wins if the target thinks a little less of the winner. A greedy row ranks by the logits.

What truncation leaves out may still be what the target keeps, the likelier the larger its logit: it comes
after all that takes part in the race.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from outrider.core.errors import InternalError
from outrider.core.logit_rows import LogitRows, check_best
from outrider.core.noise import GROUP_BITS, GROUP_SIZE, FirstDraws, streams
from outrider.core.race import pruned_to, within
from outrider.core.sampling import Rows
from outrider.core.truncation import Kept, truncate, truncates
from outrider.core.weights import exponents, weights

NO_TOKEN = -1
"""Stands where a row has fewer candidates than were asked for."""

_SLACK = 1e-6
_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True)
class _Runners:
    """Tokens in a race, one entry a token, ordered by row."""

    rows: torch.Tensor  # int64 [n]
    ids: torch.Tensor  # int64 [n]
    scores: torch.Tensor  # float64 [n]: the least wins, of equals the lowest id
    logits: torch.Tensor  # float64 [n]: less the row's best
    levels: torch.Tensor  # float64 [n]: logit less temperature * ln E

    def pick(self, index: torch.Tensor) -> _Runners:
        """These entries."""
        return _Runners(
            self.rows[index], self.ids[index], self.scores[index], self.logits[index], self.levels[index]
        )


class _Place(NamedTuple):
    """A token among the first k of its row."""

    logit: float  # less the row's best
    level: float


_List = dict[int, _Place]
"""The first k of a row by id, best first."""


def ranked_picks(
    logits: torch.Tensor, rows: Rows, k: int, token_ids: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best of each row's race E(seed, t, x) / prob(x), and how likely each is the target's pick.

    The first is `coupled_picks` exactly. A row's result depends on that row alone.

    Args:
        logits: float32 [R, V]; -inf is never drawn.
        rows: parameters of each row, and the position that it draws for.
        k: at least 1.
        token_ids: int64 [V], ids of the columns of a reduced draft vocabulary; None: column x is id x.

    Returns:
        int64 [R, k]: vocabulary ids, best first, `NO_TOKEN` where the row has no more finite logits.
        float64 [R, k]: confidences, falling, 0 for `NO_TOKEN`: the softmax over all tokens of
        logit - temperature * ln E, for each token that is not listed with at most the last one's weight. At
        temperature 0 that is the softmax of the logits. It is a guess, fit to compare nodes with.

    Raises:
        InternalError: as `coupled_picks`.
    """
    if logits.dim() != 2 or logits.shape[0] != len(rows) or logits.shape[1] == 0 or k < 1:
        raise InternalError(f"logits of shape {tuple(logits.shape)} do not fit {len(rows)} rows, {k} picks")
    if not rows:
        empty = torch.empty((0, k), dtype=torch.int64, device=logits.device)
        return empty, empty.to(torch.float64)
    if logits.device.type == "cpu":
        greedy = [index for index, (own, _) in enumerate(rows) if own.temperature == 0.0]
        if len(greedy) == len(rows):
            return _greedy(logits, k, token_ids)
        if greedy:  # by the same way as alone: the last bits of confidences differ between the ways
            return _apart(logits, rows, k, token_ids, greedy)
    with torch.inference_mode():
        every = LogitRows.of(logits, token_ids)
        listed = _race(every, rows, k)
        _fill(listed, every, k)
        ids = [[*own, *[NO_TOKEN] * (k - len(own))] for own in listed]
        confidences = [
            _confidences(row, best, tuple(own.values()), k)
            for row, best, own in zip(logits, every.best.tolist(), listed, strict=True)
        ]
    device = logits.device
    return torch.tensor(ids, device=device), torch.tensor(confidences, dtype=torch.float64, device=device)


def _apart(
    logits: torch.Tensor, rows: Rows, k: int, token_ids: torch.Tensor | None, greedy: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy rows and the others, each among themselves."""
    ids = torch.empty((len(rows), k), dtype=torch.int64)
    confidences = torch.empty((len(rows), k), dtype=torch.float64)
    others = sorted(set(range(len(rows))) - set(greedy))
    for which in (greedy, others):
        index = torch.tensor(which)
        own = [rows[row] for row in which]
        ids[index], confidences[index] = ranked_picks(logits[index], own, k, token_ids)
    return ids, confidences


def _greedy(
    logits: torch.Tensor, k: int, token_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """All that greedy rows need, by NumPy: no thread is woken (as in `coupled_picks`)."""
    ids = torch.full((len(logits), k), NO_TOKEN)
    confidences = torch.zeros((len(logits), k), dtype=torch.float64)
    names = None if token_ids is None else token_ids.numpy()
    for number, row in enumerate(logits.detach().to(torch.float32).numpy()):
        best = check_best(number, float(row.max()))
        # All that reach the k-th largest: more than k if some are equal.
        least = best if k == 1 else np.partition(row, -k)[-k] if k < len(row) else _LOWEST
        columns = np.flatnonzero(row >= max(float(least), _LOWEST))
        own = columns if names is None else names[columns]
        order = np.lexsort((own, -row[columns]))[:k]
        shares = np.exp(row[columns[order]] - np.float32(best)).astype(np.float64)
        ids[number, : len(order)] = torch.from_numpy(own[order])
        total = float(np.exp(row - np.float32(best)).sum())
        confidences[number, : len(order)] = torch.from_numpy(shares / total)
    return ids, confidences


def _race(every: LogitRows, rows: Rows, k: int) -> list[_List]:
    """The first k of each row that draws, best first."""
    listed: list[_List] = [{} for _ in rows]
    random = [index for index, (own, _) in enumerate(rows) if own.temperature > 0.0]
    whole = [index for index in random if not truncates(rows[index][0])]
    cut = [index for index in random if truncates(rows[index][0])]
    for race, which in ((_race_whole, whole), (_race_cut, cut)):
        if which:
            part = every.select(torch.tensor(which, device=every.best.device))
            runners = race(part, [rows[row] for row in which], k)
            for row, own in zip(which, _listed(runners, len(which), k), strict=True):
                listed[row] = own
    return listed


def _race_whole(logit_rows: LogitRows, rows: Rows, k: int) -> _Runners:
    """Rows that may draw any token: only those are looked at that may be among the first k."""
    draws, temperatures = _draws(logit_rows, rows)
    number = torch.arange(len(rows), device=temperatures.device)[:, None]
    most = min(k, logit_rows.groups)
    # Two sets of different tokens: each one's k-th score is a bound. One may hold impossible tokens.
    heads = logit_rows.maxima.topk(most, 1).indices
    blocks = logit_rows.table.view(len(logit_rows.table), -1, GROUP_SIZE)[logit_rows.index[:, None], heads]
    likely = (heads << GROUP_BITS) + blocks.argmax(2)
    own = draws.exponentials(number.expand_as(likely).flatten(), likely.flatten()).view(likely.shape)
    bounds = torch.minimum(
        _kth(draws.least, logit_rows, draws.least_ids, temperatures, most),
        _kth(own, logit_rows, likely, temperatures, most),
    )
    if most < k:
        bounds = torch.full_like(bounds, float("inf"))
    kept = within(logit_rows, draws, temperatures, bounds)
    return _run(logit_rows, kept, draws, temperatures)


def _kth(
    noise: torch.Tensor, rows: LogitRows, ids: torch.Tensor, temperatures: torch.Tensor, k: int
) -> torch.Tensor:
    """A bound of the k-th least score: float64 [R], inf if fewer are possible. Noise and ids are [R, n]."""
    number = torch.arange(len(rows), device=ids.device)[:, None]
    exponent = exponents(rows.at(number, ids), rows.best[:, None], temperatures[:, None])
    scores = noise / weights(exponent)
    return scores.kthvalue(k, 1).values * (1.0 + _SLACK)


def _race_cut(logit_rows: LogitRows, rows: Rows, k: int) -> _Runners:
    """Rows with top-k, top-p, min-p or typical-p."""
    draws, temperatures = _draws(logit_rows, rows)
    kept = truncate(logit_rows, [own for own, _ in rows])
    kept = kept.where(kept.weights > 0.0)
    starts = torch.searchsorted(kept.rows, torch.arange(len(rows), device=kept.rows.device))
    leading = torch.arange(len(kept.rows), device=kept.rows.device) - starts[kept.rows] < k
    first = kept.where(leading)
    scores = draws.exponentials(first.rows, first.ids) / first.weights
    bounds = scores.new_zeros(len(rows)).scatter_reduce_(0, first.rows, scores, "amax")
    counts = torch.bincount(first.rows, minlength=len(rows))
    bounds = torch.where(counts < k, float("inf"), bounds * (1.0 + _SLACK))
    return _run(logit_rows, pruned_to(kept, draws, bounds), draws, temperatures)


def _draws(logit_rows: LogitRows, rows: Rows) -> tuple[FirstDraws, torch.Tensor]:
    """Noise and temperatures, float64 [R]."""
    device = logit_rows.table.device
    stream = streams([(own.seed, position) for own, position in rows], device)
    temperatures = torch.tensor([own.temperature for own, _ in rows], dtype=torch.float64, device=device)
    return FirstDraws.of(stream, logit_rows.groups, logit_rows.best_ids), temperatures


def _run(rows: LogitRows, kept: Kept, draws: FirstDraws, temperatures: torch.Tensor) -> _Runners:
    """The race itself."""
    kept = kept.where(kept.weights > 0.0)
    noise = draws.exponentials(kept.rows, kept.ids)
    logits = rows.at(kept.rows, kept.ids).to(torch.float64) - rows.best[kept.rows].to(torch.float64)
    levels = logits - temperatures[kept.rows] * noise.log()
    return _Runners(kept.rows, kept.ids, noise / kept.weights, logits, levels)


def _by_logit(rows: LogitRows, k: int) -> _Runners:
    """Enough of each row's largest logits."""
    bounds = rows.best.new_full((len(rows),), _LOWEST)
    if k <= rows.groups:  # at least k logits reach the k-th largest of the groups' maxima
        bounds = rows.maxima.topk(k, 1).values[:, -1].clamp(min=_LOWEST)
    found, ids = rows.at_least(bounds[:, None])
    logits = rows.at(found, ids).to(torch.float64)
    levels = logits - rows.best[found].to(torch.float64)
    return _Runners(found, ids, -logits, levels, levels)


def _listed(runners: _Runners, count: int, k: int) -> list[_List]:
    """The first k of each of `count` rows, best first."""
    runners = runners.pick(torch.argsort(runners.ids, stable=True))
    runners = runners.pick(torch.argsort(runners.scores, stable=True))
    runners = runners.pick(torch.argsort(runners.rows, stable=True))
    starts = torch.searchsorted(runners.rows, torch.arange(count, device=runners.rows.device))
    places = torch.arange(len(runners.rows), device=runners.rows.device) - starts[runners.rows]
    runners = runners.pick(places < k)
    listed: list[_List] = [{} for _ in range(count)]
    columns = (runners.rows, runners.ids, runners.logits, runners.levels)
    for row, token_id, logit, level in zip(*(column.tolist() for column in columns), strict=True):
        listed[row][token_id] = _Place(logit, level)
    return listed


def _fill(listed: list[_List], every: LogitRows, k: int) -> None:
    """Where fewer raced (none in a greedy row), the largest logits follow."""
    short = [row for row, own in enumerate(listed) if len(own) < k]
    if not short:
        return
    part = every.select(torch.tensor(short, device=every.best.device))
    for row, by_logit in zip(short, _listed(_by_logit(part, k), len(short), k), strict=True):
        for token_id, place in by_logit.items():
            if len(listed[row]) < k:
                listed[row].setdefault(token_id, place)


def _confidences(logits: torch.Tensor, best: float, places: tuple[_Place, ...], k: int) -> list[float]:
    """The listed tokens' shares of the whole, falling; what is not listed weighs less than what is."""
    top = max(place.level for place in places)
    shares: list[float] = []
    for place in places:
        shares.append(min(math.exp(place.level - top), shares[-1] if shares else 1.0))
    total = math.fsum(shares)
    if len(shares) == k:
        least = shares[-1]
        weights_of_all = (logits.to(torch.float32) - (best + top)).exp_().clamp_(max=least)
        listed = math.fsum(min(math.exp(place.logit - top), least) for place in places)
        total += max(0.0, float(weights_of_all.sum()) - listed)
    return [share / total for share in shares] + [0.0] * (k - len(shares))
