"""Merging proposals: one tree, no node twice, parents kept, the likeliest ones first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.trees import TokenTree
from outrider.core.walk import walk
from outrider.verifying.fusion.merge import Opinion, accepted_of, merge

ALL = {"nodes": 64, "depth": 16, "least": 0.0}


def opinion(tree: TokenTree, *confidences: float) -> Opinion:
    return Opinion(tree, confidences or [0.5] * len(tree))


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """The tokens from the top down to each node."""
    return [tuple(tree.token_ids[node] for node in tree.path_to(last)) for last in range(len(tree))]


CHAIN = TokenTree.chain([1, 2, 3])
FORK = TokenTree((1, 4, 2, 5), (-1, -1, 0, 1))  # 1-2 and 4-5


@pytest.mark.parametrize(
    ("opinions", "limits", "merged"),
    [
        ([], {}, []),
        ([opinion(TokenTree())], {}, []),
        ([opinion(CHAIN)], {}, [(1,), (1, 2), (1, 2, 3)]),
        ([opinion(CHAIN), opinion(CHAIN)], {}, [(1,), (1, 2), (1, 2, 3)]),
        ([opinion(CHAIN), opinion(FORK)], {}, [(1,), (4,), (1, 2), (4, 5), (1, 2, 3)]),
        (
            [opinion(CHAIN, 0.9, 0.9, 0.9), opinion(FORK, 0.1, 0.3, 0.1, 0.1)],
            {"nodes": 4},
            [(1,), (1, 2), (1, 2, 3), (4,)],
        ),
        ([opinion(CHAIN), opinion(FORK)], {"depth": 2}, [(1,), (4,), (1, 2), (4, 5)]),
        ([opinion(CHAIN), opinion(FORK)], {"depth": 0}, []),
        ([opinion(CHAIN), opinion(FORK)], {"nodes": 0}, []),
        ([opinion(CHAIN, 0.5, 0.5, 0.5)], {"least": 0.2}, [(1,), (1, 2)]),
        # A sure child of an unsure parent is no likelier than its parent.
        ([opinion(CHAIN, 0.1, 1.0, 1.0), opinion(TokenTree.chain([9]), 0.2)], {"nodes": 2}, [(9,), (1,)]),
        # Where two propose the same node, it is at least as sure as the surer one says.
        (
            [opinion(CHAIN, 0.2, 0.9, 0.9), opinion(TokenTree.chain([1]), 0.8)],
            {"least": 0.6},
            [(1,), (1, 2), (1, 2, 3)],
        ),
    ],
)
def test_what_is_merged(
    opinions: list[Opinion], limits: dict[str, float], merged: list[tuple[int, ...]]
) -> None:
    assert paths(merge(opinions, **{**ALL, **limits})) == merged  # type: ignore[arg-type]


@st.composite
def trees(draw: st.DrawFn) -> Opinion:
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, len(tokens) - 1))
        token = draw(st.integers(0, 3))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent)
    confidences = draw(st.lists(st.floats(0, 1), min_size=len(tokens), max_size=len(tokens)))
    return Opinion(TokenTree(tuple(tokens), tuple(parents)), confidences)


@given(
    st.lists(trees(), max_size=4), st.integers(0, 40), st.integers(0, 6), st.sampled_from([0.0, 0.05, 0.5])
)
def test_a_merge_is_a_well_formed_tree_of_nodes_that_were_proposed(
    opinions: list[Opinion], nodes: int, depth: int, least: float
) -> None:
    merged = merge(opinions, nodes=nodes, depth=depth, least=least)
    merged.validate(vocab_size=4, max_nodes=nodes)
    assert all(level < depth for level in merged.depths())
    proposed = {path for one in opinions for path in paths(one.tree)}
    kept = paths(merged)
    assert len(set(kept)) == len(kept) and proposed.issuperset(kept)
    assert len(merged.confidences) == len(merged)


@given(st.lists(trees(), max_size=4))
def test_without_a_limit_nothing_is_lost(opinions: list[Opinion]) -> None:
    merged = merge(opinions, **ALL)  # type: ignore[arg-type]
    assert set(paths(merged)) == {path for one in opinions for path in paths(one.tree)}


@given(st.lists(trees(), min_size=1, max_size=4), st.integers(0, 12))
def test_what_a_budget_leaves_out_is_never_likelier_than_what_it_keeps(
    opinions: list[Opinion], nodes: int
) -> None:
    whole = merge(opinions, **ALL)  # type: ignore[arg-type]
    kept = merge(opinions, **{**ALL, "nodes": nodes})  # type: ignore[arg-type]
    assert kept == whole.truncated(nodes)
    chances: list[float] = []
    for parent, confidence in zip(whole.parents, whole.confidences, strict=True):
        chances.append(confidence if parent < 0 else chances[parent] * confidence)
    assert chances == sorted(chances, reverse=True)


@given(st.lists(trees(), min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=14))
def test_a_merged_tree_brings_what_the_best_of_its_proposals_brings(
    opinions: list[Opinion], picks: list[int]
) -> None:
    """The picks are those of a target that goes its own way: they depend on depth only."""
    merged = merge(opinions, **ALL)  # type: ignore[arg-type]
    at = [picks[min(depth, len(picks) - 1)] for depth in (0, *(depth + 1 for depth in merged.depths()))]
    walked = walk(merged, at)
    way = [picks[min(depth, len(picks) - 1)] for depth in range(20)]
    assert list(walked.token_ids) == way[: len(walked.token_ids)]
    assert len(walked.nodes) == max(accepted_of(one.tree, way) for one in opinions)


@pytest.mark.parametrize(
    ("token_ids", "accepted"),
    [((), 0), ((7,), 0), ((1,), 1), ((1, 2, 9), 2), ((4, 5), 2), ((4, 2), 1), ((1, 2, 3), 2), ((5,), 0)],
)
def test_how_far_a_proposal_went(token_ids: tuple[int, ...], accepted: int) -> None:
    assert accepted_of(FORK, token_ids) == accepted
