"""Hypothesis strategies and enumerations of trees."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from outrider.core.trees import TokenTree


@st.composite
def trees(draw: st.DrawFn, vocabulary: int, most: int) -> TokenTree:
    """Valid trees of at most `most` nodes."""
    ids: list[int] = []
    parents: list[int] = []
    taken: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, most))):
        parent = draw(st.integers(-1, len(ids) - 1))
        token_id = draw(st.integers(0, vocabulary - 1))
        if (parent, token_id) not in taken:
            taken.add((parent, token_id))
            ids.append(token_id)
            parents.append(parent)
    return TokenTree(tuple(ids), tuple(parents))


def all_trees(vocabulary: int, most: int) -> Iterator[TokenTree]:
    """Every valid tree of at most `most` nodes, in every order of its nodes."""
    level = [TokenTree()]
    for _ in range(most + 1):
        yield from level
        level = [
            TokenTree((*tree.token_ids, token_id), (*tree.parents, parent))
            for tree in level
            for parent in range(-1, len(tree))
            for token_id in range(vocabulary)
            if token_id not in tree.children().get(parent, {})
        ]
