"""The tree that a session is to get: its drafter's shape, within what it was asked for."""

from __future__ import annotations

from outrider.core.params import Acceptance
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.growth.tree import GrowingTree
from outrider.drafting.session import DraftSession


def is_drawn(session: DraftSession) -> bool:
    """Whether the session's rule judges draft tokens by the law that they were drawn from."""
    return session.acceptance is not Acceptance.COUPLED


def wants_tree(session: DraftSession, shape: TreeShape, most: int) -> bool:
    """Whether the session's goal and budget leave room for a tree (else: a chain, or nothing).

    Args:
        session: with its goal and its budget of nodes.
        shape: of the drafter's trees.
        most: nodes of its largest tree.
    """
    return session.goal > 0 and not shape.within(session.goal, min(session.nodes, most)).is_chain


def plant(session: DraftSession, shape: TreeShape, most: int) -> GrowingTree:
    """The tree of a session that `wants_tree`, with nothing in it yet.

    By the rules "token" and "block" static trees are drawn. Dynamic ones choose among their nodes, which
    must not be done with drawn tokens, so theirs are chosen from the start.
    """
    nodes = min(session.nodes, most)
    own = shape.within(session.goal, nodes)
    return GrowingTree(own, depth=session.goal, nodes=nodes, drawn=own.is_static and is_drawn(session))
