"""Growing trees: shapes, what is followed, what is kept, and the order in which nodes run."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.errors import ConfigError, InternalError
from outrider.core.trees import SparseProbs, TokenTree
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.growth.tree import ROOT, GrowingTree

Table = dict[tuple[int, ...], list[tuple[int, float]]]


class World:
    """What may follow a path: random, but a function of the path alone."""

    def __init__(self, seed: int, width: int = 6) -> None:
        self._seed = seed
        self._width = width

    def after(self, above: tuple[int, ...]) -> tuple[list[int], list[float]]:
        draw = random.Random(f"{self._seed} {above}")
        weights = sorted((draw.random() ** 3 for _ in range(self._width)), reverse=True)
        return draw.sample(range(100), self._width), [weight / sum(weights) for weight in weights]


def grown(tree: GrowingTree, world: World) -> GrowingTree:
    """Grow to the end; on the way, the running trees must go on from one another."""
    before = TokenTree()
    while not tree.done:
        running = tree.running()
        assert running.token_ids[: tree.ran] == before.token_ids and len(before) == tree.ran
        assert running.parents[: tree.ran] == before.parents
        running.validate(vocab_size=100, max_nodes=1000)
        before = running
        for node in tree.frontier:
            tree.grow(node, *world.after(tree.above(node)))
    return tree


def exhaustive(shape: TreeShape, depth: int, nodes: int, world: World) -> dict[tuple[int, ...], float]:
    """The likeliest `nodes` of the shape's whole tree: path -> how likely it is to be reached."""
    every: list[tuple[float, tuple[int, ...]]] = []
    level: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    for number in range(shape.depth(depth)):
        fresh = []
        for reached, above in level:
            for token, confidence in list(zip(*world.after(above), strict=True))[: shape.children(number)]:
                fresh.append((reached * confidence, (*above, token)))
        every += fresh
        most = shape.followed()
        level = sorted(fresh, key=lambda own: -own[0])[:most] if most is not None else fresh
    return {path: reached for reached, path in sorted(every, key=lambda own: -own[0])[:nodes]}


@settings(max_examples=200, deadline=None)
@given(
    shape=st.sampled_from(
        [TreeShape((3, 2, 1, 1)), TreeShape((2, 2, 2)), TreeShape((), 3), TreeShape((), 6)]
    ),
    depth=st.integers(1, 6),
    nodes=st.integers(1, 60),
    seed=st.integers(0, 10**6),
)
def test_keeps_the_likeliest_nodes(shape: TreeShape, depth: int, nodes: int, seed: int) -> None:
    """Leaving early what cannot be kept changes nothing."""
    world = World(seed)
    tree = grown(GrowingTree(shape, depth=depth, nodes=nodes), world)
    proposal = tree.proposal()
    proposal.validate(vocab_size=100, max_nodes=nodes)
    paths = [
        tuple(proposal.token_ids[node] for node in proposal.path_to(leaf)) for leaf in range(len(proposal))
    ]
    want = exhaustive(shape, depth, nodes, world)
    assert set(paths) == set(want)
    reached = [
        math.prod(proposal.confidences[node] for node in proposal.path_to(leaf))
        for leaf in range(len(proposal))
    ]
    assert reached == pytest.approx([want[path] for path in paths])
    assert reached == sorted(reached, reverse=True)
    assert max(proposal.depths()) < shape.depth(depth)


@pytest.mark.parametrize("shape", [TreeShape(), TreeShape((1, 1, 1, 1, 1))])
def test_a_chain_is_a_tree_with_one_branch(shape: TreeShape) -> None:
    world = World(5)
    tree = GrowingTree(shape, depth=4, nodes=4)
    proposal = grown(tree, world).proposal()
    ids: tuple[int, ...] = ()
    for _ in range(4):
        ids += (world.after(ids)[0][0],)
    assert proposal.token_ids == ids and proposal.is_chain
    assert tree.running().token_ids == ids[:3], "the last level is not run"


def test_a_static_tree_has_its_shape() -> None:
    proposal = grown(GrowingTree(TreeShape((3, 2, 1, 1)), depth=9, nodes=100), World(1)).proposal()
    depths = proposal.depths()
    assert [depths.count(depth) for depth in range(5)] == [3, 6, 6, 6, 0]


def test_a_budget_no_larger_than_the_depth_makes_a_chain() -> None:
    for shape in (TreeShape((3, 2, 1, 1)), TreeShape((), 4)):
        assert shape.within(4, 4).is_chain and shape.within(4, 0).is_chain
        assert shape.within(4, 5) == shape
    assert TreeShape((2,)).within(9, 2).depth(9) == 9


def test_drawn_trees_choose_nothing() -> None:
    """The first nodes are kept, in the order in which they were drawn."""
    tree = GrowingTree(TreeShape((2, 2)), depth=2, nodes=4, drawn=True)
    law = SparseProbs((1, 2), (0.5, 0.5))
    tree.grow(ROOT, (8, 9), (0.1, 0.9), (law, law))
    assert tree.frontier == (0, 1)
    tree.grow(1, (3, 4), (0.9, 0.1), (law, law))
    tree.grow(0, (5, 6), (0.1, 0.1), (law, law))
    proposal = tree.proposal()
    assert proposal.token_ids == (8, 9, 3, 4) and proposal.parents == (-1, -1, 1, 1)
    assert proposal.draft_probs == (law,) * 4 and proposal.confidences == (0.1, 0.9, 0.9, 0.1)


def test_what_is_no_candidate_is_left_out() -> None:
    tree = GrowingTree(TreeShape((), 4), depth=2, nodes=9)
    tree.grow(ROOT, (5, -1, 5, 6, 7), (math.nan, 0.5, 0.5, 2.0, 0.5))
    proposal = tree.proposal()
    assert proposal.token_ids == (5, 6) and proposal.confidences == (0.0, 0.0)


def test_nothing_can_follow() -> None:
    tree = GrowingTree(TreeShape((), 4), depth=3, nodes=9)
    tree.grow(ROOT, (-1,), (0.0,))
    assert tree.done and len(tree.proposal()) == 0
    for depth, nodes in ((0, 5), (5, 0)):
        assert GrowingTree(TreeShape((), 4), depth=depth, nodes=nodes).done


def test_only_the_frontier_grows() -> None:
    tree = GrowingTree(TreeShape((2, 2, 2)), depth=3, nodes=9)
    with pytest.raises(InternalError):
        tree.grow(0, (1,), (0.5,))
    tree.grow(ROOT, (1, 2), (0.5, 0.5))
    with pytest.raises(InternalError):
        tree.grow(ROOT, (1,), (0.5,))
    tree.grow(0, (1,), (0.5,))
    with pytest.raises(InternalError):
        tree.grow(0, (1,), (0.5,))


def test_how_far_commits_go_along_what_ran() -> None:
    tree = GrowingTree(TreeShape((2, 2, 2)), depth=3, nodes=14)
    tree.grow(ROOT, (1, 2), (0.6, 0.4))
    assert tree.ran_along((1, 3)) == [], "the frontier has not run yet"
    tree.grow(0, (3, 4), (0.6, 0.4))
    tree.grow(1, (3, 5), (0.6, 0.4))
    assert tree.ran_along((2, 3)) == [1]
    for node in tree.frontier:
        tree.grow(node, (9, 8), (0.6, 0.4))
    assert tree.done
    running = tree.running()
    for ids in ((1, 3), (1, 4, 9), (2, 5, 8, 1), (2, 6), (7,), ()):
        path = tree.ran_along(ids)
        assert [running.token_ids[node] for node in path] == list(ids[: len(path)])
        assert path == (running.path_to(path[-1]) if path else [])
    assert [len(tree.ran_along(ids)) for ids in ((1, 3), (1, 4, 9), (2, 6), (7,))] == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("text", "want"),
    [("chain", TreeShape()), ("dynamic", TreeShape((), 4)), ("3,2,1,1", TreeShape((3, 2, 1, 1)))],
)
def test_shapes_of_the_configuration(text: str, want: TreeShape) -> None:
    assert TreeShape.parse(text, 4) == want


@pytest.mark.parametrize("text", ["", "3,,1", "0", "65", "tree", "-1", "1," * 64 + "1", "٣"])
def test_shapes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="tree is"):
        TreeShape.parse(text, 4)
