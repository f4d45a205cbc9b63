"""What becomes of a round's walk: trimmed to what is delivered, and why a session ends. Pure."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from outrider.core.rounds import Walk
from outrider.core.sessions import FinishReason
from outrider.core.trees import TokenTree


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of one session's round."""

    token_ids: tuple[int, ...]  # tokens to deliver and to commit
    accepted: int  # how many of them, from the start, were draft tokens
    nodes: tuple[int, ...]  # draft nodes whose KV is kept, from the top down
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


def settle(walk: Walk, remaining: int, stop_token_ids: Set[int]) -> Settled:
    """Trim a walk at the first stop token and at `remaining` tokens, whichever comes first.

    The stop token itself is neither delivered nor committed. One token at a time gives the same:
    a stop token past the `remaining`-th token would never have been drawn.
    """
    kept: list[int] = []
    reason, stop_token_id = None, None
    for token_id in walk.token_ids:
        if token_id in stop_token_ids:
            reason, stop_token_id = FinishReason.STOP, token_id
            break
        kept.append(token_id)
        if len(kept) == remaining:
            reason = FinishReason.LENGTH
            break
    accepted = min(len(kept), len(walk.nodes))
    return Settled(tuple(kept), accepted, walk.nodes[:accepted], reason, stop_token_id)


def clip(tree: TokenTree, *, nodes: int, depth: int) -> TokenTree:
    """What of a proposal is worth verifying: at most `nodes` nodes, none as deep as `depth`."""
    if not tree.is_chain:
        tree = tree.pruned(depth)
    elif len(tree) > depth:
        tree = tree.truncated(depth)
    return tree.truncated(nodes) if len(tree) > nodes else tree


def positions(tree: TokenTree, length: int) -> list[int]:
    """Absolute position of the token drawn after the root and after each node of `tree`.

    Args:
        tree: the draft tokens, without the root.
        length: tokens that the session holds, the root included.
    """
    return [length, *(length + depth + 1 for depth in tree.depths())]
