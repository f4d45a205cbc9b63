"""Distributions: drawing from them, truncating them, and what is left of one after a rejection."""

from __future__ import annotations

from bisect import bisect_right

import torch

from outrider.core.trees import SparseProbs, TokenTree


def draw(weights: torch.Tensor, uniform: float) -> int:
    """The index that `uniform` falls on: the first whose cumulative share exceeds it.

    Args:
        weights: float64 [V], not negative, some above 0; they need not sum to 1.
        uniform: in (0, 1). Only compared, so a test may hand in something that stands for all of (0, 1).

    Returns:
        An index with a weight above 0.
    """
    cumulative = weights.cumsum(0)
    # The last share is exactly 1, and a token without weight adds nothing to the one before.
    return bisect_right((cumulative / cumulative[-1]).numpy(), uniform)


def ranked_law(probs: torch.Tensor, most: int) -> SparseProbs:
    """The `most` most probable ids of a distribution, renormalised: what is to be drawn from, and sent.

    Rounded to float32, as it travels, BEFORE anything is drawn: both sides must mean the same numbers.

    Args:
        probs: float64 [V].
        most: ids to keep at most.
    """
    values, ids = probs.topk(min(most, len(probs)))
    kept = (values / values.sum()).to(torch.float32)
    count = int((kept > 0).sum())
    return SparseProbs(tuple(ids[:count].tolist()), tuple(kept[:count].tolist()))


class DraftLaw:
    """The distribution that a draft token was drawn from."""

    __slots__ = ("_ids", "_probs")

    def __init__(self, ids: torch.Tensor, probs: torch.Tensor) -> None:
        """Of int64 ids [n] and their float64 probabilities [n], which sum to 1."""
        self._ids = ids
        self._probs = probs

    @classmethod
    def of(cls, tree: TokenTree, node: int) -> DraftLaw:
        """A node's. Without `draft_probs` tokens were not drawn but chosen: all is on the token itself."""
        if not tree.draft_probs:
            ids = torch.tensor([tree.token_ids[node]])
            return cls(ids, torch.ones(1, dtype=torch.float64))
        sparse = tree.draft_probs[node]
        probs = torch.tensor(sparse.probs, dtype=torch.float64)
        return cls(torch.tensor(sparse.token_ids), probs / probs.sum())

    def prob(self, token_id: int) -> float:
        """Of one token id."""
        return float(self._probs[self._ids == token_id].sum())

    def excess(self, weights: torch.Tensor) -> torch.Tensor:
        """max(weights - self, 0), float64 [V]. Ids of this law may be past V: there `weights` is 0."""
        inside = self._ids < len(weights)
        left = weights.clone()
        left[self._ids[inside]] -= self._probs[inside]
        return left.clamp_(min=0.0)


def normalised(weights: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """`weights` as a distribution; `otherwise` if they are all 0.

    All are 0 only after a rejection that has probability 0: by rounding, or by a drafter that lies.
    """
    total = weights.sum()
    return weights / total if total > 0 else otherwise
