"""The walk down a tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import InternalError
from outrider.core.rounds import Walk
from outrider.core.trees import TokenTree
from outrider.core.walk import walk
from tests.unit.core.strategies import trees

CHAIN = TokenTree.chain([4, 5, 6])


@pytest.mark.parametrize(
    ("picks", "expected"),
    [
        ([4, 5, 6, 7], Walk((0, 1, 2), (4, 5, 6, 7))),
        ([4, 5, 9, 7], Walk((0, 1), (4, 5, 9))),
        ([4, 9, 6, 7], Walk((0,), (4, 9))),
        ([9, 5, 6, 7], Walk((), (9,))),
    ],
)
def test_chain(picks: list[int], expected: Walk) -> None:
    assert walk(CHAIN, picks) == expected


def test_no_proposal_is_a_plain_step() -> None:
    assert walk(TokenTree(), [3]) == Walk((), (3,))


def test_branches() -> None:
    #   -1 -> 0:a=1 -> 2:c=3 -> 4:e=5
    #      -> 1:b=2 -> 3:d=3
    tree = TokenTree((1, 2, 3, 3, 5), (-1, -1, 0, 1, 2))
    assert walk(tree, [2, 0, 3, 0, 8, 0]) == Walk((1, 3), (2, 3, 8))
    assert walk(tree, [1, 3, 0, 5, 0, 9]) == Walk((0, 2, 4), (1, 3, 5, 9))
    assert walk(tree, [1, 2, 0, 0, 0, 0]) == Walk((0,), (1, 2))
    assert walk(tree, [7, 3, 0, 0, 0, 0]) == Walk((), (7,))


@pytest.mark.parametrize("count", [0, 2, 3, 5])
def test_picks_must_fit_the_tree(count: int) -> None:
    with pytest.raises(InternalError, match="a tree of 3 nodes needs 4 picks"):
        walk(CHAIN, [1] * count)


@given(st.data())
def test_every_token_is_the_pick_at_its_place(data: st.DataObject) -> None:
    tree = data.draw(trees(vocabulary=3, most=12))
    picks = data.draw(st.lists(st.integers(0, 2), min_size=len(tree) + 1, max_size=len(tree) + 1))
    result = walk(tree, picks)
    assert len(result.token_ids) == len(result.nodes) + 1
    assert list(result.nodes) == tree.path_to(result.nodes[-1] if result.nodes else -1)
    assert [tree.token_ids[node] for node in result.nodes] == list(result.token_ids[:-1])
    for node, token_id in zip((-1, *result.nodes), result.token_ids, strict=True):
        assert token_id == picks[node + 1]
    last = result.nodes[-1] if result.nodes else -1
    assert result.token_ids[-1] not in tree.children().get(last, {})
