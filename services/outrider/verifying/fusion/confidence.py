"""How much a drafter's confidences are worth: learned from what became of its nodes. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from outrider.core.trees import TokenTree

_EDGES = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)
_MIDDLES = (0.025, 0.075, 0.15, 0.25, 0.375, 0.525, 0.675, 0.825, 0.95)
_PRIOR = 12.0  # nodes that a bucket's first guess is worth
_MEMORY = 400.0  # nodes that a bucket remembers: drafters, and what they are asked, change
_UNSAID = 0.5  # of drafters that give no confidences


class Calibration:
    """One drafter's confidences against the truth, in buckets."""

    def __init__(self) -> None:
        self._accepted = [middle * _PRIOR for middle in _MIDDLES]
        self._seen = [_PRIOR] * len(_MIDDLES)

    def of(self, tree: TokenTree) -> list[float]:
        """How likely each node is accepted if its parent is."""
        return [self._accepted[at] / self._seen[at] for at in map(_bucket, _said(tree))]

    def learn(self, tree: TokenTree, token_ids: Sequence[int]) -> None:
        """The truth about a proposal: only nodes whose parent was accepted say something.

        Args:
            tree: as proposed.
            token_ids: what was committed instead of it, the bonus token included.
        """
        said = _said(tree)
        path = {-1: 0}  # nodes on the accepted path -> how many tokens stand above and at them
        for node, (token_id, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
            depth = path.get(parent)
            if depth is None or depth >= len(token_ids):
                continue
            hit = token_id == token_ids[depth]
            if hit:
                path[node] = depth + 1
            self._count(_bucket(said[node]), hit)

    def _count(self, at: int, hit: bool) -> None:
        if self._seen[at] >= _MEMORY:
            keep = 1 - 1 / _MEMORY
            self._seen[at] *= keep
            self._accepted[at] *= keep
        self._seen[at] += 1
        self._accepted[at] += hit


def _said(tree: TokenTree) -> Sequence[float]:
    return tree.confidences or [_UNSAID] * len(tree)


def _bucket(confidence: float) -> int:
    return bisect_right(_EDGES, confidence)
