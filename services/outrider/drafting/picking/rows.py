"""A row of draft logits: what it comes after, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.drafting.growth.tree import GrowingTree
from outrider.drafting.session import DraftSession

_TREES = 1 << 31
"""Random numbers of trees have higher names than any position, so that none serves in a chain too."""


@dataclass(frozen=True, slots=True)
class DraftRow:
    """The logits after a session's committed tokens and some draft tokens."""

    session: DraftSession
    above: Sequence[int] = ()  # these draft tokens
    count: int = 1  # candidates wanted
    number: int | None = None  # if they are to be drawn: names the first one's random number

    @property
    def position(self) -> int:
        """Of the token that it draws for."""
        return len(self.session.tokens) + len(self.above)

    @classmethod
    def of_chain(cls, session: DraftSession) -> DraftRow:
        """The row after all that the session has drafted ahead."""
        return cls(session, tuple(session.ahead), 1, len(session))

    @classmethod
    def of_tree(cls, session: DraftSession, tree: GrowingTree, node: int) -> DraftRow:
        """The row after a node of its tree's frontier (or the tree's root)."""
        # A node's children are numbered apart from the others': rows are drawn before the tree grows.
        number = _TREES + (node + 1) * tree.most_children if tree.drawn else None
        return cls(session, tree.above(node), tree.children, number)
