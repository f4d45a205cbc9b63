"""Who gets the credit: every drafter for what it had proposed, of what was verified."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.trees import TokenTree
from outrider.core.walk import walk
from outrider.verifying.fusion.credit import Credit, credits
from outrider.verifying.fusion.merge import Opinion, accepted_of, merge
from tests.unit.core.strategies import trees

CHAIN = TokenTree.chain([1, 2, 3])
FORK = TokenTree((1, 4, 2, 5), (-1, -1, 0, 1))  # 1-2 and 4-5
UNION = TokenTree((1, 4, 2, 5, 3), (-1, -1, 0, 1, 2))


@pytest.mark.parametrize(
    ("proposed", "verified", "accepted", "told"),
    [
        ({}, TokenTree(), (), {}),
        ({"a": CHAIN}, CHAIN.truncated(2), (0,), {"a": Credit(2, 1)}),
        ({"a": CHAIN, "b": FORK}, UNION, (0, 2, 4), {"a": Credit(3, 3), "b": Credit(4, 2)}),
        ({"a": CHAIN, "b": FORK}, UNION, (1, 3), {"a": Credit(3, 0), "b": Credit(4, 2)}),
        # What was left out brings no credit, and neither does what stands below it.
        ({"a": CHAIN, "b": FORK}, UNION.truncated(2), (0,), {"a": Credit(1, 1), "b": Credit(2, 1)}),
        ({"a": CHAIN, "b": TokenTree()}, CHAIN, (), {"a": Credit(3, 0), "b": Credit(0, 0)}),
        ({"a": CHAIN, "b": FORK}, TokenTree(), (), {"a": Credit(0, 0), "b": Credit(0, 0)}),
    ],
)
def test_credit(
    proposed: dict[str, TokenTree], verified: TokenTree, accepted: tuple[int, ...], told: dict[str, Credit]
) -> None:
    assert credits(proposed, verified, accepted) == told


@given(st.lists(trees(3, 8), min_size=2, max_size=4), st.lists(st.integers(0, 2), min_size=9, max_size=9))
def test_somebody_had_proposed_what_was_accepted(proposed: list[TokenTree], way: list[int]) -> None:
    named = {str(index): tree for index, tree in enumerate(proposed)}
    opinions = [Opinion(tree, [0.5] * len(tree)) for tree in proposed]
    verified = merge(opinions, nodes=64, depth=16, least=0.0)
    walked = walk(verified, [way[depth] for depth in (0, *(depth + 1 for depth in verified.depths()))])
    told = credits(named, verified, walked.nodes)
    assert {name: credit.accepted for name, credit in told.items()} == {
        name: accepted_of(tree, way) for name, tree in named.items()
    }
    assert max(credit.accepted for credit in told.values()) == len(walked.nodes)
    assert all(credit.drafted == len(named[name]) for name, credit in told.items())
