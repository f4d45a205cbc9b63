"""What a drafter's trees look like: `tree` and `tree_top_k` of its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.core.errors import ConfigError

CHAIN = "chain"
DYNAMIC = "dynamic"
MOST_BRANCHES = 64
MOST_DEPTH = 64


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How many children a node may have, and which nodes are followed."""

    branches: tuple[int, ...] = ()  # by depth; empty: dynamic
    top_k: int = 1  # dynamic: most children of a node, and most nodes of a level that are followed

    @classmethod
    def parse(cls, text: str, top_k: int) -> TreeShape:
        """From the configuration: "chain", "dynamic", or branches by depth such as "3,2,1,1".

        Raises:
            ConfigError: it is none of these.
        """
        if text == CHAIN:
            return cls()
        if text == DYNAMIC:
            return cls((), top_k)
        parts = text.split(",")
        branches = tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in parts)
        if not all(1 <= own <= MOST_BRANCHES for own in branches) or len(branches) > MOST_DEPTH:
            raise ConfigError(
                f"tree is {text[:80]!r}: it must be chain, dynamic, or branches by depth such as 3,2,1,1, "
                f"each 1 to {MOST_BRANCHES}, at most {MOST_DEPTH} of them"
            )
        return cls(branches)

    @property
    def is_chain(self) -> bool:
        """Whether no node ever has a sibling."""
        return all(own == 1 for own in self.branches) if self.branches else self.top_k == 1

    @property
    def is_static(self) -> bool:
        """Whether the shape is the same whatever the draft model thinks."""
        return bool(self.branches)

    def within(self, depth: int, nodes: int) -> TreeShape:
        """This shape, or a chain if there is no room for branches: `nodes` is at most `depth`."""
        return self if nodes > depth and not self.is_chain else TreeShape()

    def depth(self, most: int) -> int:
        """How deep a tree gets, at most `most`."""
        return min(most, len(self.branches)) if self.branches else most

    def children(self, depth: int) -> int:
        """Most children of a node at `depth` - 1, that is nodes at `depth` under one parent."""
        return self.branches[depth] if self.branches else self.top_k

    @property
    def most_children(self) -> int:
        """Most children of any node."""
        return max(self.branches, default=self.top_k)

    def followed(self) -> int | None:
        """Most nodes of a level that are followed; None: all."""
        return None if self.branches else self.top_k
