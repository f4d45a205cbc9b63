"""Proposals of several drafters become one tree. Pure.

The trees are laid over each other: nodes with the same tokens above them are one node. By the rule "coupled"
the walk emits the target's own picks whatever the tree (`core/walk.py`), so a merge needs no proof. What is
verified are the nodes that are likeliest to be accepted: the product of the confidences down the path, as in
EAGLE-2 (arXiv 2406.16858).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.trees import TokenTree


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one drafter proposes, and how likely each node is accepted if its parent is."""

    tree: TokenTree
    confidences: Sequence[float]  # of each node, 0 to 1, calibrated


def merge(opinions: Sequence[Opinion], *, nodes: int, depth: int, least: float) -> TokenTree:
    """One tree of the nodes that are likeliest to be accepted.

    Args:
        opinions: of each drafter; where several propose the same node, the surest one counts.
        nodes: most nodes.
        depth: most nodes on a path.
        least: nodes less likely than this to be accepted are not worth their cost.

    Returns:
        A tree with the confidences that it was ranked by; likelier nodes stand before less likely ones.
    """
    tokens: list[int] = []
    parents: list[int] = []
    sure: list[float] = []
    known: dict[tuple[int, int], int] = {}  # parent and token id -> node of the union
    for opinion in opinions:
        _lay_over(opinion, tokens, parents, sure, known)
    chances, depths = _chances(parents, sure)
    # No child is likelier than its parent, and of equals the parent stands first: so parents are kept.
    order = sorted(range(len(tokens)), key=lambda node: -chances[node])
    kept = [node for node in order if chances[node] >= least and depths[node] < depth][:nodes]
    place = {node: index for index, node in enumerate(kept)}
    place[-1] = -1
    return TokenTree(
        tuple(tokens[node] for node in kept),
        tuple(place[parents[node]] for node in kept),
        (),
        tuple(sure[node] for node in kept),
    )


def _lay_over(
    opinion: Opinion,
    tokens: list[int],
    parents: list[int],
    sure: list[float],
    known: dict[tuple[int, int], int],
) -> None:
    """Add one tree to the union."""
    place = [-1]  # of each node of this tree in the union, the root's first
    tree = opinion.tree
    for token_id, parent, confidence in zip(tree.token_ids, tree.parents, opinion.confidences, strict=True):
        above = place[parent + 1]
        node = known.get((above, token_id))
        if node is None:
            node = known[above, token_id] = len(tokens)
            tokens.append(token_id)
            parents.append(above)
            sure.append(confidence)
        else:
            sure[node] = max(sure[node], confidence)
        place.append(node)


def _chances(parents: Sequence[int], sure: Sequence[float]) -> tuple[list[float], list[int]]:
    """How likely each node is accepted, and its depth. A parent stands before its children."""
    chances: list[float] = []
    depths: list[int] = []
    for parent, confidence in zip(parents, sure, strict=True):
        chances.append(confidence if parent < 0 else chances[parent] * confidence)
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return chances, depths


def accepted_of(tree: TokenTree, token_ids: Sequence[int]) -> int:
    """How many of the committed tokens, from the start, stand on one path of a drafter's tree."""
    children = tree.children()
    node = -1
    for count, token_id in enumerate(token_ids):
        child = children.get(node, {}).get(token_id)
        if child is None:
            return count
        node = child
    return len(token_ids)
