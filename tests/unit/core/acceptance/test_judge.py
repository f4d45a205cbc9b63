"""The rules on real tensors: greedy, shapes, lies, and the vocabulary's end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.acceptance import Round, draw, judge, ranked_law, round_uniforms, rule_of
from outrider.core.acceptance.uniforms import RoundUniforms
from outrider.core.params import Acceptance, SamplingParams
from outrider.core.sampling import target_probs
from outrider.core.trees import SparseProbs, TokenTree
from outrider.core.walk import walk
from tests.unit.core.acceptance.worlds import BLOCK, TOKEN
from tests.unit.core.strategies import trees

VOCABULARY = 5
GREEDY = SamplingParams(temperature=0.0)


def uniforms(seed: int, nodes: int) -> RoundUniforms:
    return round_uniforms([Round(seed, 9, nodes)])[0]


@st.composite
def told(draw: st.DrawFn, token_id: int) -> SparseProbs:
    """Any law that the wire lets through: it gives the node's own token something, and sums to about 1."""
    others = draw(st.lists(st.integers(0, VOCABULARY + 2), unique=True, max_size=4))
    ids = [token_id, *(other for other in others if other != token_id)]
    weights = [draw(st.sampled_from([1e-30, 1e-3, 0.3, 1.0])) for _ in ids]
    total = sum(weights) * draw(st.sampled_from([1.0, 1.0009, 0.9991]))
    return SparseProbs(tuple(ids), tuple(weight / total for weight in weights))


@st.composite
def proposals(draw: st.DrawFn) -> TokenTree:
    chain = draw(st.booleans())
    tree = draw(trees(VOCABULARY, 4))
    if chain:
        tree = TokenTree.chain(tree.token_ids)
    laws = tuple(draw(told(token_id)) for token_id in tree.token_ids) if draw(st.booleans()) else ()
    return TokenTree(tree.token_ids, tree.parents, laws)


@given(proposals(), st.sampled_from([TOKEN, BLOCK]), st.integers(0, 2**64 - 1), st.data())
def test_greedy_whatever_is_proposed_and_told(
    tree: TokenTree, acceptance: Acceptance, seed: int, data: st.DataObject
) -> None:
    logits = torch.tensor(
        [
            data.draw(st.lists(st.integers(-3, 3), min_size=VOCABULARY, max_size=VOCABULARY))
            for _ in range(len(tree) + 1)
        ],
        dtype=torch.float32,
    )
    picks = logits.argmax(1).tolist()
    probs = target_probs(logits, [GREEDY] * len(logits))
    judged = judge(acceptance, tree, lambda node: probs[node + 1], uniforms(seed, len(tree)))
    assert judged == walk(tree, picks)


@given(proposals(), st.sampled_from([TOKEN, BLOCK]), st.integers(0, 2**64 - 1), st.data())
def test_lies_cost_nothing_but_the_law(
    tree: TokenTree, acceptance: Acceptance, seed: int, data: st.DataObject
) -> None:
    """Whatever is told, a round emits tokens that the target may emit, along the tree, and one at least."""
    rows = [
        data.draw(st.lists(st.sampled_from([0.0, 1e-12, 0.5, 1.0]), min_size=VOCABULARY, max_size=VOCABULARY))
        for _ in range(len(tree) + 1)
    ]
    probs = torch.tensor(rows, dtype=torch.float64)
    probs[:, 0] += (probs.sum(1) == 0).double()
    probs /= probs.sum(1, keepdim=True)
    judged = judge(acceptance, tree, lambda node: probs[node + 1], uniforms(seed, len(tree)))
    assert len(judged.token_ids) == len(judged.nodes) + 1
    node = -1
    for accepted, token_id in zip(judged.nodes, judged.token_ids, strict=False):
        assert tree.parents[accepted] == node and tree.token_ids[accepted] == token_id
        assert probs[node + 1, token_id] > 0
        node = accepted
    assert probs[node + 1, judged.token_ids[-1]] > 0


def test_block_takes_trees_with_branches_as_token_does() -> None:
    tree = TokenTree((1, 2, 3), (-1, -1, 0))
    probs = torch.full((4, VOCABULARY), 1 / VOCABULARY, dtype=torch.float64)
    for seed in range(50):
        answers = [judge(rule, tree, lambda n: probs[n + 1], uniforms(seed, 3)) for rule in (TOKEN, BLOCK)]
        assert answers[0] == answers[1]


def test_rule_in_force() -> None:
    assert rule_of(TOKEN, GREEDY) is Acceptance.COUPLED
    assert rule_of(BLOCK, SamplingParams(temperature=0.5)) is BLOCK
    assert rule_of(Acceptance.COUPLED, SamplingParams()) is Acceptance.COUPLED


def test_draw_never_takes_what_has_no_weight() -> None:
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    least, most = 2.0**-50, 1.0 - 2.0**-50
    assert [draw(weights, u) for u in (least, 0.6, 0.7, most)] == [1, 1, 3, 3]


def test_draw_from_a_large_vocabulary() -> None:
    probs = torch.rand(50_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs[-1000:] = 0.0
    shares = (probs.cumsum(0) / probs.sum()).tolist()
    for u in (2.0**-50, 0.1, 0.5, 0.999999, 1.0 - 2.0**-50):
        index = draw(probs, u)
        assert probs[index] > 0 and (index == 0 or shares[index - 1] <= u + 1e-12)
        assert u <= shares[index] + 1e-12


@pytest.mark.parametrize("most", [1, 3, 32])
def test_a_truncated_law_is_told_as_it_travels(most: int) -> None:
    """In float32, so that both sides mean the same numbers."""
    probs = torch.tensor([0.1, 0.0, 0.4, 0.2, 0.3], dtype=torch.float64)
    law = ranked_law(probs, most)
    assert law.token_ids == (2, 4, 3, 0)[:most]
    assert torch.tensor(law.probs, dtype=torch.float32).tolist() == list(law.probs)
    assert sum(law.probs) == pytest.approx(1.0, abs=1e-6)
    assert all(prob > 0 for prob in law.probs)
