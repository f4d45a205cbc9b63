"""From logits to tokens: the processed distribution, and the coupled pick from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core.errors import InternalError
from outrider.core.noise import exponentials, streams
from outrider.core.sessions import SamplingParams


def coupled_picks(
    logits: torch.Tensor,
    rows: Sequence[tuple[SamplingParams, int]],
    token_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token for each row: argmin over x of E(seed, t, x) / prob(x), ties to the lowest id."""
    if len(rows) != logits.shape[0]:
        raise InternalError(f"{logits.shape[0]} rows of logits, but {len(rows)} of parameters")
    ids = torch.arange(logits.shape[1], device=logits.device) if token_ids is None else token_ids
    picks = logits.new_empty(len(rows), dtype=torch.int64)
    for index, (params, position) in enumerate(rows):
        probs = target_probs(logits[index : index + 1], [params])[0]
        kept = probs.nonzero()[:, 0]
        noise = exponentials(streams([(params.seed, position)], logits.device), ids[kept])
        scores = noise / probs[kept]
        picks[index] = ids[kept][scores == scores.min()].min()
    return picks


def target_probs(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The processed distribution of each row, float64 [R, V]."""
    return torch.stack([_row_probs(row, own) for row, own in zip(logits, params, strict=True)])


def _row_probs(row: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    best = row.max()
    if not torch.isfinite(best):
        raise InternalError(f"the largest logit of a row is {best.item()}")
    if params.temperature == 0.0:
        return torch.nn.functional.one_hot(row.argmax(), row.shape[0]).to(torch.float64)
    weights = ((row.double() - best.double()) / params.temperature).exp()
    weights[weights < params.min_p] = 0.0
    order = torch.argsort(row, descending=True, stable=True)
    if params.top_k:
        weights[order[params.top_k :]] = 0.0
    if params.top_p < 1.0:
        mass = weights[order].cumsum(0)
        weights[order[1:][mass[:-1] >= params.top_p * mass[-1]]] = 0.0
    return weights / weights.sum()
