"""The walk down a proposal along the target's picks: all there is to coupled acceptance."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.errors import InternalError
from outrider.core.rounds import Walk
from outrider.core.trees import TokenTree


def walk(tree: TokenTree, picks: Sequence[int]) -> Walk:
    """Follow the target's picks from the last committed token down the proposal.

    Every emitted token is a pick of the target's own, so the output cannot depend on the tree;
    the tree only decides how many picks of this round can be used.

    Args:
        tree: the proposal, without a root for the last committed token.
        picks: `picks[0]` is the target's pick after the last committed token, `picks[i + 1]` the
            one after node i. One more than nodes.

    Returns:
        The accepted nodes, and their token ids followed by the pick that no child matched (the
        bonus token): always at least one token.

    Raises:
        InternalError: the number of picks does not fit the tree.
    """
    if len(picks) != len(tree) + 1:
        raise InternalError(f"a tree of {len(tree)} nodes needs {len(tree) + 1} picks, got {len(picks)}")
    children = tree.children()
    nodes: list[int] = []
    token_ids: list[int] = []
    node = -1
    while True:
        pick = int(picks[node + 1])
        token_ids.append(pick)
        child = children.get(node, {}).get(pick)
        if child is None:
            return Walk(nodes=tuple(nodes), token_ids=tuple(token_ids))
        nodes.append(child)
        node = child
