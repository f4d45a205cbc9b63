"""Token trees, against what each operation means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import ProtocolError
from outrider.core.trees import SparseProbs, TokenTree
from tests.unit.core.strategies import all_trees, trees

#  -1 -> 0:a=1 -> 2:c=3 -> 4:e=5
#     -> 1:b=2 -> 3:d=3
BUSH = TokenTree((1, 2, 3, 3, 5), (-1, -1, 0, 1, 2))


def texts(tree: TokenTree) -> list[tuple[int, ...]]:
    """Each node as the ids from the top down to it: what a tree means, apart from the order of nodes."""
    return [tuple(tree.token_ids[above] for above in tree.path_to(node)) for node in range(len(tree))]


def test_chain() -> None:
    chain = TokenTree.chain([7, 7, 8])
    assert chain.parents == (-1, 0, 1)
    assert chain.is_chain
    assert texts(chain) == [(7,), (7, 7), (7, 7, 8)]
    assert TokenTree.chain([]) == TokenTree()
    assert TokenTree().is_chain
    assert not BUSH.is_chain


def test_bush() -> None:
    assert BUSH.depths() == [0, 0, 1, 1, 2]
    assert BUSH.children() == {-1: {1: 0, 2: 1}, 0: {3: 2}, 1: {3: 3}, 2: {5: 4}}
    assert BUSH.path_to(4) == [0, 2, 4]
    assert BUSH.path_to(-1) == []
    assert BUSH.truncated(3) == TokenTree((1, 2, 3), (-1, -1, 0))
    assert BUSH.pruned(1) == TokenTree((1, 2), (-1, -1))
    assert BUSH.under(9) == TokenTree((9, 1, 2, 3, 3, 5), (-1, 0, 0, 1, 2, 3))


def valid(tree: TokenTree, nodes: int = 100) -> None:
    tree.validate(vocab_size=5, max_nodes=nodes)


@given(trees(vocabulary=4, most=15))
def test_depth_is_the_length_of_the_way(tree: TokenTree) -> None:
    valid(tree)
    assert tree.depths() == [len(text) - 1 for text in texts(tree)]
    assert tree.is_chain == (tree.depths() == list(range(len(tree))))


@given(trees(vocabulary=4, most=15))
def test_no_two_nodes_mean_the_same(tree: TokenTree) -> None:
    assert len(set(texts(tree))) == len(tree)


@given(trees(vocabulary=4, most=15), st.integers(0, 16))
def test_truncated_keeps_the_first_nodes(tree: TokenTree, nodes: int) -> None:
    cut = tree.truncated(nodes)
    valid(cut, nodes)
    assert texts(cut) == texts(tree)[:nodes]


@given(trees(vocabulary=4, most=15), st.integers(0, 16))
def test_pruned_keeps_the_upper_nodes_in_order(tree: TokenTree, depth: int) -> None:
    cut = tree.pruned(depth)
    valid(cut)
    assert texts(cut) == [text for text in texts(tree) if len(text) <= depth]


@given(trees(vocabulary=4, most=15), st.integers(0, 3))
def test_under_puts_one_token_above_all(tree: TokenTree, token_id: int) -> None:
    rooted = tree.under(token_id)
    valid(rooted)
    assert texts(rooted) == [(token_id,), *((token_id, *text) for text in texts(tree))]


@given(trees(vocabulary=4, most=15))
def test_children_are_all_nodes_once(tree: TokenTree) -> None:
    table = tree.children()
    assert sorted(node for nodes in table.values() for node in nodes.values()) == list(range(len(tree)))
    for parent, nodes in table.items():
        for token_id, node in nodes.items():
            assert (tree.token_ids[node], tree.parents[node]) == (token_id, parent)


def test_validate_accepts_exactly_the_valid_trees() -> None:
    """All pairs of lists of 3 small numbers: validate passes those that the enumeration builds, no others."""
    good = {tree for tree in all_trees(2, 3) if len(tree) == 3}
    accepted = set()
    for code in range(3**3 * 4**3):
        ids = tuple(code // 3**index % 3 for index in range(3))
        parents = tuple(code // 27 // 4**index % 4 - 1 for index in range(3))
        tree = TokenTree(ids, parents)
        try:
            tree.validate(vocab_size=2, max_nodes=3)
        except ProtocolError:
            continue
        accepted.add(tree)
    assert accepted == good


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (TokenTree((1, 2), (-1,)), "2 token ids but 1 parents"),
        (TokenTree((1,), (-1, 0)), "1 token ids but 2 parents"),
        (TokenTree.chain(range(9)), "9 nodes, at most 8"),
        (TokenTree((10,), (-1,)), "node 0 has token id 10, the vocabulary has 10"),
        (TokenTree((-1,), (-1,)), "node 0 has token id -1"),
        (TokenTree((1, 2), (-1, 1)), "node 1 has parent 1"),
        (TokenTree((1, 2), (-1, 2)), "node 1 has parent 2"),
        (TokenTree((1,), (-2,)), "node 0 has parent -2"),
        (TokenTree((1, 2, 1), (-1, -1, -1)), "node 2 repeats token id 1"),
        (TokenTree((1, 2, 2), (-1, 0, 0)), "node 2 repeats token id 2"),
    ],
)
def test_what_is_wrong_is_said(tree: TokenTree, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        tree.validate(vocab_size=10, max_nodes=8)


def test_a_huge_tree_is_refused_before_it_is_looked_at() -> None:
    count = 1_000_000
    with pytest.raises(ProtocolError, match="at most 8"):
        TokenTree((0,) * count, (5,) * count).validate(vocab_size=10, max_nodes=8)


def test_parts_of_a_tree_keep_what_each_node_was_drawn_from() -> None:
    laws = tuple(SparseProbs((token_id, 9), (0.5, 0.5)) for token_id in (1, 2, 3, 4))
    tree = TokenTree((1, 2, 3, 4), (-1, 0, -1, 2), laws)
    assert tree.truncated(2).draft_probs == laws[:2]
    assert tree.pruned(1) == TokenTree((1, 3), (-1, -1), (laws[0], laws[2]))
