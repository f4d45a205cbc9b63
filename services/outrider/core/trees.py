"""Token trees: what a drafter proposes and what the engine runs. A chain is a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class SparseProbs:
    """A truncated, renormalised distribution: what a draft token was really sampled from."""

    token_ids: tuple[int, ...]
    probs: tuple[float, ...]  # above 0, sum to 1


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Token ids with the index of each one's parent.

    `parents[i] < i`, or -1 for a child of whatever the tree stands on (the last committed
    token). Siblings carry different ids.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    draft_probs: tuple[SparseProbs, ...] = ()  # for the rules "token" and "block"; empty: chosen, not drawn
    confidences: tuple[
        float, ...
    ] = ()  # how likely each is accepted if its parent is, 0 to 1; empty: not said

    @classmethod
    def chain(cls, token_ids: Sequence[int]) -> TokenTree:
        """A tree without branches."""
        return cls(tuple(token_ids), tuple(range(-1, len(token_ids) - 1)))

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """True if every node is the only child of the one before it."""
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    def depths(self) -> list[int]:
        """Depth of each node; a child of what the tree stands on has depth 0."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def under(self, token_id: int) -> TokenTree:
        """The tree with `token_id` as its new single root (node 0), as the engine runs it."""
        return TokenTree((token_id, *self.token_ids), (-1, *(parent + 1 for parent in self.parents)))

    def truncated(self, nodes: int) -> TokenTree:
        """The first `nodes` nodes; always a valid tree, since parents come first."""
        return TokenTree(
            self.token_ids[:nodes], self.parents[:nodes], self.draft_probs[:nodes], self.confidences[:nodes]
        )

    def pruned(self, depth: int) -> TokenTree:
        """The nodes with a depth below `depth`."""
        kept: dict[int, int] = {-1: -1}
        for index, node_depth in enumerate(self.depths()):
            if node_depth < depth:
                kept[index] = len(kept) - 1
        order = [index for index in kept if index >= 0]
        return TokenTree(
            tuple(self.token_ids[index] for index in order),
            tuple(kept[self.parents[index]] for index in order),
            tuple(self.draft_probs[index] for index in order) if self.draft_probs else (),
            tuple(self.confidences[index] for index in order) if self.confidences else (),
        )

    def children(self) -> dict[int, dict[int, int]]:
        """For each parent index (-1 included): token id -> node index of its children."""
        table: dict[int, dict[int, int]] = {}
        for index, (token_id, parent) in enumerate(zip(self.token_ids, self.parents, strict=True)):
            table.setdefault(parent, {})[token_id] = index
        return table

    def path_to(self, node: int) -> list[int]:
        """Node indices from the top down to `node`, `node` included. -1 gives an empty path."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def validate(self, *, vocab_size: int, max_nodes: int) -> None:
        """Check a tree that came from outside.

        Raises:
            ProtocolError: what is wrong, and where.
        """
        if len(self.token_ids) != len(self.parents):
            raise ProtocolError(f"tree has {len(self.token_ids)} token ids but {len(self.parents)} parents")
        if len(self.token_ids) > max_nodes:
            raise ProtocolError(f"tree has {len(self.token_ids)} nodes, at most {max_nodes} are allowed")
        seen: set[tuple[int, int]] = set()
        for index, (token_id, parent) in enumerate(zip(self.token_ids, self.parents, strict=True)):
            if not 0 <= token_id < vocab_size:
                raise ProtocolError(f"node {index} has token id {token_id}, the vocabulary has {vocab_size}")
            if not -1 <= parent < index:
                raise ProtocolError(f"node {index} has parent {parent}, which must be -1 or stand before it")
            if (parent, token_id) in seen:
                raise ProtocolError(f"node {index} repeats token id {token_id} among its siblings")
            seen.add((parent, token_id))
