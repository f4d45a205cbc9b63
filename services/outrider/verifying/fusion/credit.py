"""Who had proposed what was verified and what was accepted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.core.trees import TokenTree


@dataclass(frozen=True, slots=True)
class Credit:
    """One drafter's part of a round."""

    drafted: int  # nodes verified that it had proposed
    accepted: int  # tokens accepted that it had proposed, from the start


def credits(
    proposed: Mapping[str, TokenTree], verified: TokenTree, accepted: Sequence[int]
) -> dict[str, Credit]:
    """The part of each drafter in a round. What several had proposed counts for each of them.

    Args:
        proposed: the trees that came, by drafter.
        verified: what was made of them.
        accepted: nodes of `verified` that were accepted, from the top down.
    """
    if len(proposed) == 1:
        return dict.fromkeys(proposed, Credit(len(verified), len(accepted)))
    children, path = verified.children(), set(accepted)
    return {name: _credit(tree, children, path) for name, tree in proposed.items()}


def _credit(tree: TokenTree, children: Mapping[int, Mapping[int, int]], path: set[int]) -> Credit:
    places: list[int | None] = [-1]  # of the root and of each node, in what was verified; None: left out
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        above = places[parent + 1]
        places.append(None if above is None else children.get(above, {}).get(token_id))
    return Credit(sum(place is not None for place in places[1:]), sum(place in path for place in places[1:]))
