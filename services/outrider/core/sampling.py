"""From logits to tokens: the processed distribution, and the coupled pick from it.

Order of processing, as vLLM has it: [masks, bias, penalties] temperature, min-p, top-k, top-p, typical-p.
What stands in brackets edits logits and comes before (core/editing.py): whoever edits hands in edited logits,
with -inf for what may not be drawn. Nothing here looks at a row's history.

A row's result depends on that row alone, bit for bit: not on the other rows of the call, nor on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from outrider.core.errors import InternalError
from outrider.core.logit_rows import LogitRows, check_best
from outrider.core.noise import FirstDraws, streams
from outrider.core.params import SamplingParams
from outrider.core.race import contenders, pruned, winners
from outrider.core.truncation import only_top_p, surely_kept, truncate, truncates
from outrider.core.weights import exponents, tree_sum, weights

Rows = Sequence[tuple[SamplingParams, int]]
"""Parameters of each row, and the position that it draws for."""


def coupled_picks(
    logits: torch.Tensor,
    rows: Rows,
    token_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token for each row: argmin over x of E(seed, t, x) / prob(x), ties to the lowest id.

    Args:
        logits: float32 [R, V]; -inf is never drawn.
        rows: parameters of each row, and the absolute position t of the token to draw (the number of
            tokens before it, prompt included).
        token_ids: int64 [V], the vocabulary id of each column of a reduced draft vocabulary, all
            different; None: column x is id x. The noise belongs to the id, so that both sides race alike.

    Returns:
        int64 [R], vocabulary ids.

    Raises:
        InternalError: logits and rows do not fit, or a row holds NaN, +inf, or nothing but -inf.
    """
    _check_shape(logits, len(rows))
    if not rows:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    if logits.device.type == "cpu" and all(own.temperature == 0.0 for own, _ in rows):
        return torch.tensor(_largest(logits, token_ids))
    with torch.inference_mode():  # many small operations: bookkeeping for gradients would be a third of it
        every = LogitRows.of(logits, token_ids)
        picks = every.best_ids
        for draw, which in _kinds(rows):
            if len(which) == len(rows):
                return draw(every, rows)
            index = torch.tensor(which, device=logits.device)
            picks[index] = draw(every.select(index), [rows[row] for row in which])
        return picks


def target_probs(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The processed distribution of each row: what `coupled_picks` draws from.

    Args:
        logits: float32 [R, V]; -inf has probability 0.
        params: of each row. Temperature 0 puts everything on the lowest id with the largest logit.

    Returns:
        float64 [R, V], each row summing to 1.

    Raises:
        InternalError: as `coupled_picks`.
    """
    _check_shape(logits, len(params))
    if not params:
        return torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    every = LogitRows.of(logits)
    probs = torch.zeros(every.table.shape, dtype=torch.float64, device=logits.device)
    for index, own in enumerate(params):
        if own.temperature == 0.0:
            probs[index, every.best_ids[index]] = 1.0
        elif truncates(own):
            kept = truncate(every.select(torch.tensor([index], device=logits.device)), [own])
            probs[index, kept.ids] = kept.weights
        else:
            temperature = torch.tensor(own.temperature, dtype=torch.float64, device=logits.device)
            probs[index] = weights(exponents(every.row(index), every.best[index], temperature))
    return (probs / tree_sum(probs))[:, : logits.shape[1]]


def _largest(logits: torch.Tensor, token_ids: torch.Tensor | None) -> list[int]:
    """The lowest id with the largest logit, for each row; all that greedy rows need.

    By NumPy: no thread is woken and no temporary is made, a tenth of the time, in a round's critical path.
    """
    picks = []
    ids = None if token_ids is None else token_ids.numpy()
    for number, row in enumerate(logits.detach().to(torch.float32).numpy()):
        column = int(row.argmax())  # the first of equals, and of NaNs
        best = check_best(number, float(row[column]))
        picks.append(column if ids is None else int(ids[row == best].min()))
    return picks


def _kinds(rows: Rows) -> list[tuple[Callable[[LogitRows, Rows], torch.Tensor], list[int]]]:
    """How to draw which rows; greedy ones need nothing more."""
    random = [index for index, (own, _) in enumerate(rows) if own.temperature > 0.0]
    whole = [index for index in random if not truncates(rows[index][0])]
    nucleus = [index for index in random if only_top_p(rows[index][0])]
    cut = sorted(set(random) - set(whole) - set(nucleus))
    kinds = ((_draw_whole, whole), (_draw_nucleus, nucleus), (_draw_cut, cut))
    return [(draw, which) for draw, which in kinds if which]


def _draw_whole(logit_rows: LogitRows, rows: Rows) -> torch.Tensor:
    """Rows that may draw any token."""
    device = logit_rows.table.device
    draws = _first_draws(logit_rows, rows, logit_rows.best_ids)
    temperatures = torch.tensor([own.temperature for own, _ in rows], dtype=torch.float64, device=device)
    return winners(contenders(logit_rows, draws, temperatures), draws)


def _draw_nucleus(logit_rows: LogitRows, rows: Rows) -> torch.Tensor:
    """Rows with top-p alone.

    What wins against all tokens wins against those of the nucleus, if it is one of them: mostly it is.
    """
    picks = _draw_whole(logit_rows, rows)
    kept = surely_kept(logit_rows, [own for own, _ in rows], picks)
    doubtful = [index for index, is_kept in enumerate(kept) if not is_kept]
    if doubtful:
        index = torch.tensor(doubtful, device=picks.device)
        picks[index] = _draw_cut(logit_rows.select(index), [rows[row] for row in doubtful])
    return picks


def _draw_cut(logit_rows: LogitRows, rows: Rows) -> torch.Tensor:
    """Rows with top-k, top-p, min-p or typical-p."""
    kept = truncate(logit_rows, [own for own, _ in rows])
    firsts = torch.searchsorted(kept.rows, torch.arange(len(rows), device=kept.rows.device))
    draws = _first_draws(logit_rows, rows, kept.ids[firsts])
    return winners(pruned(kept, draws, kept.weights[firsts]), draws)


def _first_draws(logit_rows: LogitRows, rows: Rows, ids: torch.Tensor) -> FirstDraws:
    stream = streams([(own.seed, position) for own, position in rows], logit_rows.table.device)
    return FirstDraws.of(stream, logit_rows.groups, ids)


def _check_shape(logits: torch.Tensor, rows: int) -> None:
    if logits.dim() != 2 or logits.shape[0] != rows or logits.shape[1] == 0:
        raise InternalError(f"logits of shape {tuple(logits.shape)} do not fit {rows} rows of parameters")
