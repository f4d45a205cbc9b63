"""Votes against a plain count over all paths, and the shape of what grows."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.trees import TokenTree
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.lookup.continuation import LONGEST_MATCH, Continuation
from outrider.drafting.lookup.own_text import OwnText
from outrider.drafting.lookup.voting import SHARED_WEIGHT, WEIGHTS, grow

VOTERS = st.lists(
    st.builds(
        Continuation,
        length=st.integers(1, LONGEST_MATCH),
        token_ids=st.lists(st.integers(0, 2), max_size=6).map(tuple),
        shared=st.booleans(),
    ),
    max_size=12,
)
SHAPES = st.sampled_from([TreeShape(), TreeShape((), 2), TreeShape((), 4), TreeShape((3, 2, 1, 1))])


def confidence(voters: list[Continuation], above: tuple[int, ...], token: int) -> float:
    """Of `token` after `above`, counted anew over all voters that agree with the whole path."""
    depth = len(above)
    agree = [
        (one, Fraction(WEIGHTS[min(one.length + depth, LONGEST_MATCH)]) * Fraction(_share(one)))
        for one in voters
        if one.token_ids[:depth] == above and len(one.token_ids) > depth
    ]
    total = sum((weight for _, weight in agree), Fraction(1))
    own = sum((weight for one, weight in agree if one.token_ids[depth] == token), Fraction(0))
    return float(own / total)


def _share(voter: Continuation) -> float:
    return SHARED_WEIGHT if voter.shared else 1.0


def above(tree: TokenTree, node: int) -> tuple[int, ...]:
    return tuple(tree.token_ids[one] for one in tree.path_to(node)[:-1])


def reached(tree: TokenTree, node: int) -> float:
    product = 1.0
    for one in tree.path_to(node):
        product *= tree.confidences[one]
    return product


@given(VOTERS, SHAPES, st.integers(1, 8), st.integers(1, 16), st.sampled_from([0.0, 0.1, 0.3]))
def test_the_likeliest_nodes_within_all_bounds(
    voters: list[Continuation], shape: TreeShape, depth: int, nodes: int, floor: float
) -> None:
    tree = grow(voters, shape, depth=depth, nodes=nodes, floor=floor)
    tree.validate(vocab_size=3, max_nodes=nodes)
    assert len(tree.confidences) == len(tree)
    assert all(own < depth for own in tree.depths())
    for own, children in tree.children().items():
        level = 0 if own < 0 else tree.depths()[own] + 1
        assert len(children) <= shape.children(level)
    for node, token in enumerate(tree.token_ids):
        assert tree.confidences[node] == pytest.approx(confidence(voters, above(tree, node), token))
        assert 0 < tree.confidences[node] < 1
        assert reached(tree, node) >= floor * (1 - 1e-9)
    chances = [reached(tree, node) for node in range(len(tree))]
    assert all(later <= sooner * (1 + 1e-9) for sooner, later in itertools.pairwise(chances))


@given(VOTERS, SHAPES, st.integers(1, 8))
def test_nothing_likelier_is_left_out(voters: list[Continuation], shape: TreeShape, nodes: int) -> None:
    tree = grow(voters, shape, depth=4, nodes=nodes)
    everything = grow(voters, shape, depth=4, nodes=10_000)
    assert everything.truncated(len(tree)) == tree
    assert len(tree) == min(nodes, len(everything))


def test_a_longer_match_and_more_of_them_count_for_more() -> None:
    def of(*voters: Continuation) -> float:
        return grow(voters, TreeShape(), depth=1, nodes=1).confidences[0]

    once, twice = [of(Continuation(n, (7,))) for n in (2, 8)], of(*[Continuation(2, (7,))] * 2)
    assert once[0] < twice < once[1]
    assert of(Continuation(2, (7,), shared=True)) < once[0]
    assert all(low < high for low, high in itertools.pairwise(WEIGHTS))
    assert len(WEIGHTS) == LONGEST_MATCH + 1


def test_a_strong_match_leads_deep_and_weak_ones_lead_wide() -> None:
    shape = TreeShape((), 4)
    deep = [len(grow([Continuation(n, (1,) * 16)], shape, depth=16, nodes=16, floor=0.3)) for n in (1, 2, 8)]
    assert deep[0] < deep[1] < deep[2] == 16
    weak = grow([Continuation(1, (n,) * 16) for n in range(4)], shape, depth=16, nodes=8)
    assert sum(parent < 0 for parent in weak.parents) == 4


def test_of_equals_the_most_recent_comes_first() -> None:
    tokens = [1, 2, 5, 1, 2, 6, 1, 2]
    text = OwnText([2])
    text.extend(tokens, len(tokens))
    assert grow(text.find(tokens, 1), TreeShape(), depth=1, nodes=1).token_ids == (6,)


def replay(tokens: list[int], start: int, shape: TreeShape, nodes: int) -> tuple[int, int]:
    """Accepted draft tokens and rounds, if the target says exactly `tokens` from `start` on."""
    text, at, accepted, rounds = OwnText([2, 3, 4]), start, 0, 0
    while at < len(tokens):
        text.extend(tokens, at)
        tree = grow(text.find(tokens[:at], 4), shape, depth=4, nodes=nodes)
        children, node = tree.children(), -1
        while at < len(tokens) and tokens[at] in children.get(node, {}):
            node = children[node][tokens[at]]
            at += 1
            accepted += 1
        at += 1
        rounds += 1
    return accepted, rounds


def test_a_tree_accepts_more_than_a_chain_where_text_repeats_with_changes() -> None:
    sentences = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 9, 5, 7], [1, 2, 8, 4, 5, 6]]
    order = [0, 1, 2, 1, 0, 0, 2, 1, 0, 2, 2, 0, 1, 1, 2, 0, 1, 2, 0, 2]
    tokens = [token for one in order for token in sentences[one]]
    chain = replay(tokens, 18, TreeShape(), 4)
    tree = replay(tokens, 18, TreeShape((), 4), 12)
    assert tree[0] > chain[0] > 0
    assert tree[1] < chain[1]
