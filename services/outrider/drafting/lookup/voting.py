"""What follows most likely, by what followed before: continuations vote, and the tree grows likeliest first.

Each continuation votes for its next token, the more the longer the match before it. The confidence of a
token is its share of the votes, with one vote more against all: w(x) / (sum of w + 1), so that few and short
matches promise little. Down the tree a continuation votes as long as it agrees, and its match has grown
by the tokens in between. The likeliest nodes of all are taken, so a strong match leads to a deep tree and
several weak ones to a broad one, as in SuffixDecoding (Oliaro et al., arXiv 2411.04975), which counts
occurrences of the longest match alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from outrider.core.trees import TokenTree
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.lookup.continuation import LONGEST_MATCH, Continuation

KNOTS = ((1, 0.2), (2, 1.1), (3, 3.1), (4, 4.3), (6, 6.0), (8, 8.7), (12, 12.6), (16, 15.8), (32, 100.0))


def _weights() -> tuple[float, ...]:
    """Votes by length of match, linear between the knots."""
    weights = [0.0]
    for (low, start), (high, stop) in zip(((0, 0.0), *KNOTS), KNOTS, strict=False):
        weights += [start + (stop - start) * (step + 1) / (high - low) for step in range(high - low)]
    return tuple(weights)


WEIGHTS = _weights()
SHARED_WEIGHT = 0.7
"""Of a vote from another session's text."""

_Vote = tuple[float, list[Continuation]]


def votes(voters: Sequence[Continuation], depth: int) -> dict[int, _Vote]:
    """What may follow a node whose children are at `depth`: token -> votes and who gave them.

    Of equals the most recent comes first, if the voters do.
    """
    result: dict[int, _Vote] = {}
    for voter in voters:
        if depth >= len(voter.token_ids):
            continue
        weight = WEIGHTS[min(voter.length + depth, LONGEST_MATCH)]
        if voter.shared:
            weight *= SHARED_WEIGHT
        token = voter.token_ids[depth]
        known = result.get(token)
        if known is None:
            result[token] = (weight, [voter])
        else:
            known[1].append(voter)
            result[token] = (known[0] + weight, known[1])
    return result


def grow(
    voters: Sequence[Continuation], shape: TreeShape, *, depth: int, nodes: int, floor: float = 0.0
) -> TokenTree:
    """The tree of the likeliest nodes.

    Args:
        voters: longest match first, then most recent first.
        shape: most children of a node.
        depth: most levels.
        nodes: most nodes.
        floor: nodes that are less likely to be reached are left out.
    """
    depth = shape.depth(depth)
    tokens: list[int] = []
    parents: list[int] = []
    confidences: list[float] = []
    waiting: list[tuple[float, int, int, int, int, float, list[Continuation]]] = []
    count = 0

    def expand(node: int, level: int, reached: float, own: Sequence[Continuation]) -> None:
        nonlocal count
        if level >= depth:
            return
        following = votes(own, level)
        total = sum(weight for weight, _ in following.values()) + 1.0
        best = sorted(following.items(), key=lambda item: -item[1][0])[: shape.children(level)]
        for token, (weight, supporters) in best:
            confidence = weight / total
            if reached * confidence >= floor:
                count += 1  # so that of equals the elder comes first, and no voters are compared
                item = (-reached * confidence, count, node, level, token, confidence, supporters)
                heapq.heappush(waiting, item)

    expand(-1, 0, 1.0, voters)
    while waiting and len(tokens) < nodes:
        against, _, parent, level, token, confidence, supporters = heapq.heappop(waiting)
        tokens.append(token)
        parents.append(parent)
        confidences.append(confidence)
        expand(len(tokens) - 1, level + 1, -against, supporters)
    return TokenTree(tuple(tokens), tuple(parents), (), tuple(confidences))
