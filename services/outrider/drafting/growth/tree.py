"""A tree of drafts that grows a level at a time, whatever method says what may follow a node.

Static shapes follow every node. Dynamic ones follow the nodes of a level that are likeliest to be reached,
and in the end keep the likeliest of all, as EAGLE-2 does (Li et al., arXiv 2406.16858). How likely a node is
to be reached is the product of the confidences down to it, so the likeliest nodes always form a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.errors import InternalError
from outrider.core.trees import SparseProbs, TokenTree
from outrider.drafting.growth.shape import TreeShape

ROOT = -1
"""Stands for what the tree grows on: the last committed token."""


@dataclass(frozen=True, slots=True)
class Node:
    """A draft token in its tree."""

    token_id: int
    parent: int  # its number, or ROOT
    depth: int  # children of the root: 0
    confidence: float  # that the target picks it if it picked the parent
    reached: float  # product of the confidences down to here
    law: SparseProbs | None = None  # what it was drawn from, given its elder siblings


class GrowingTree:
    """Grows by what follows each node of its frontier, until it is done.

        while not tree.done:
            for node in tree.frontier:  # ROOT at first; then nodes that the model runs, all at once
                tree.grow(node, token_ids, confidences)  # at most `tree.children`, the likeliest first
        return tree.proposal()

    A frontier's nodes run after `tree.ran` others: `tree.running()` is the tree of both, as an engine
    runs it (`StepItem.ran`).

    A tree whose tokens are drawn (rules "token" and "block") must not choose among them afterwards, which
    would change their law: it keeps the first nodes, not the likeliest, and its shape must be static.
    """

    def __init__(self, shape: TreeShape, *, depth: int, nodes: int, drawn: bool = False) -> None:
        """Args:
        shape: of the tree.
        depth: most levels.
        nodes: most nodes of the proposal.
        drawn: whether the tokens are drawn.
        """
        self._shape = shape
        self._depth = shape.depth(depth)
        self._most = nodes
        self._drawn = drawn
        self._nodes: list[Node] = []
        self._run: list[int] = []  # nodes that ran or are in the frontier, in this order
        self._places: dict[int, int] = {}  # of each of these
        self._level = 0
        self._frontier: tuple[int, ...] = (ROOT,) if self._depth > 0 and nodes > 0 else ()
        self._waiting = set(self._frontier)
        self._fresh: list[int] = []  # nodes of the level that grows

    def __len__(self) -> int:
        """Nodes so far, those that will not be proposed among them."""
        return len(self._nodes)

    def __getitem__(self, node: int) -> Node:
        return self._nodes[node]

    @property
    def done(self) -> bool:
        """Whether nothing more is to be run."""
        return not self._frontier

    @property
    def frontier(self) -> tuple[int, ...]:
        """Nodes whose children are wanted."""
        return self._frontier

    @property
    def level(self) -> int:
        """Depth of these children."""
        return self._level

    @property
    def children(self) -> int:
        """Most children of each node of the frontier."""
        return self._shape.children(self._level)

    @property
    def most_children(self) -> int:
        """Most children of any node."""
        return self._shape.most_children

    @property
    def drawn(self) -> bool:
        """Whether its tokens are drawn."""
        return self._drawn

    @property
    def ran(self) -> int:
        """Nodes that were frontier before."""
        return len(self._run) - sum(node != ROOT for node in self._frontier)

    def running(self) -> TokenTree:
        """The nodes that ran, then those of the frontier."""
        parents = tuple(self._places.get(self._nodes[node].parent, ROOT) for node in self._run)
        return TokenTree(tuple(self._nodes[node].token_id for node in self._run), parents)

    def above(self, node: int) -> tuple[int, ...]:
        """Token ids from the top down to `node`, itself included."""
        ids: list[int] = []
        while node != ROOT:
            ids.append(self._nodes[node].token_id)
            node = self._nodes[node].parent
        return tuple(reversed(ids))

    def grow(
        self,
        node: int,
        token_ids: Sequence[int],
        confidences: Sequence[float],
        laws: Sequence[SparseProbs] = (),
    ) -> None:
        """Say what may follow a node of the frontier. After the last one of them the frontier moves on.

        Args:
            node: of the frontier, once.
            token_ids: the likeliest first; those below 0, and repeated ones, are left out.
            confidences: of each, 0 to 1 (anything else counts as 0).
            laws: of each, if the tokens are drawn.

        Raises:
            InternalError: the node was not asked for.
        """
        if node not in self._waiting:
            raise InternalError(f"node {node} does not wait for children")
        self._waiting.discard(node)
        above = 1.0 if node == ROOT else self._nodes[node].reached
        known: set[int] = set()
        for index, token_id in enumerate(token_ids[: self.children]):
            if token_id < 0 or token_id in known:
                continue
            known.add(token_id)
            confidence = confidences[index] if 0.0 <= confidences[index] <= 1.0 else 0.0
            law = laws[index] if laws else None
            self._fresh.append(len(self._nodes))
            self._nodes.append(Node(token_id, node, self._level, confidence, above * confidence, law))
        if not self._waiting:
            self._move_on()

    def proposal(self) -> TokenTree:
        """The nodes to propose, the likeliest first."""
        kept = self._best()
        places = {node: place for place, node in enumerate(kept)}
        nodes = [self._nodes[node] for node in kept]
        laws = tuple(node.law for node in nodes if node.law is not None)
        return TokenTree(
            tuple(node.token_id for node in nodes),
            tuple(places.get(node.parent, ROOT) for node in nodes),
            laws if len(laws) == len(nodes) else (),
            tuple(node.confidence for node in nodes),
        )

    def ran_along(self, token_ids: Sequence[int]) -> list[int]:
        """How far these tokens go down the nodes that ran, as a path of `running()` above its frontier."""
        ran = self._run[: self.ran]
        children = {(self._nodes[node].parent, self._nodes[node].token_id): node for node in ran}
        path: list[int] = []
        node = ROOT
        for token_id in token_ids:
            following = children.get((node, token_id))
            if following is None:
                break
            node = following
            path.append(self._places[node])
        return path

    def _move_on(self) -> None:
        self._level += 1
        fresh, self._fresh = self._fresh, []
        best = set(self._best())  # what is not among these now will never be
        followed = [node for node in fresh if node in best]
        most = self._shape.followed()
        if most is not None and len(followed) > most:
            followed = sorted(followed, key=self._reached)[:most]
        self._frontier = tuple(sorted(followed)) if self._level < self._depth else ()
        self._waiting = set(self._frontier)
        for node in self._frontier:
            self._places[node] = len(self._run)
            self._run.append(node)

    def _best(self) -> list[int]:
        numbers = range(len(self._nodes))
        # Sorting is stable: of equals the elder comes first, so no child comes before its parent.
        return list(numbers if self._drawn else sorted(numbers, key=self._reached))[: self._most]

    def _reached(self, node: int) -> float:
        return -self._nodes[node].reached
