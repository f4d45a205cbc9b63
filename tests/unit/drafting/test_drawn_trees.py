"""Trees whose siblings are drawn without replacement, judged by the real rule: the target's law, exactly."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.core.params import SamplingParams
from outrider.core.trees import TokenTree
from outrider.drafting.growth.planting import plant, wants_tree
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.picking import drawing
from outrider.drafting.picking.rows import DraftRow
from outrider.drafting.session import DraftSession, SessionKey
from tests.unit.core.acceptance.enumeration import World, distance
from tests.unit.core.acceptance.worlds import (
    BLOCK,
    TOKEN,
    Drafter,
    Tokens,
    drafts,
    emitted_law,
    rule,
    target_law,
)

TOLERANCE = 1e-6
"""Draft laws are rounded to float32, as they travel."""


def logits(context: Tokens) -> torch.Tensor:
    return torch.tensor([[math.log(prob) if prob else -math.inf for prob in drafts(context)]])


def drafter(
    shape: TreeShape, nodes: int, monkeypatch: pytest.MonkeyPatch, *, spoilt: bool = False
) -> Drafter:
    """Grows trees as a draft model does, over random numbers that stand for all numbers."""

    def draft(context: Tokens, world: World) -> TokenTree:
        names = lambda draws: [world.number("draft", *name) for name in draws]  # noqa: E731
        monkeypatch.setattr(drawing, "draft_uniforms", names)
        session = DraftSession(
            SessionKey(1, "a"), 1, SamplingParams(), list(context), acceptance=TOKEN, since=len(context)
        )
        session.goal, session.nodes = 2, nodes
        assert wants_tree(session, shape, nodes)
        tree = plant(session, shape, nodes)
        if spoilt:
            tree._drawn = False
        while not tree.done:
            for node in tree.frontier:
                row = DraftRow.of_tree(session, tree, node)
                row = DraftRow(session, row.above, row.count, row.number or 1000 * (node + 2))
                (found,) = drawing.draw_candidates(logits(context + tuple(row.above)), [row])
                tree.grow(node, found.token_ids, found.confidences, found.laws)
        return tree.proposal()

    return draft


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
@pytest.mark.parametrize(
    ("branches", "nodes"), [((2, 1), 9), ((3, 1), 9), ((2, 2), 9), ((2, 2), 3), ((2, 1), 3)]
)
def test_the_law_is_the_targets(
    acceptance: object, branches: tuple[int, ...], nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over as many rounds as three tokens take, and with trees that a budget cuts."""
    law = emitted_law(rule(acceptance), drafter(TreeShape(branches), nodes, monkeypatch))  # type: ignore[arg-type]
    assert distance(law, target_law()) < TOLERANCE


def test_to_keep_the_likeliest_of_what_was_drawn_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    law = emitted_law(rule(TOKEN), drafter(TreeShape((2, 2)), 3, monkeypatch, spoilt=True))
    assert distance(law, target_law()) > 0.001


def test_siblings_are_all_that_can_be_drawn() -> None:
    """A law of two tokens has no third child, and every child is another token."""
    session = DraftSession(SessionKey(1, "a"), 1, SamplingParams(seed=4), [], acceptance=TOKEN)
    row = torch.full((1, 50), -math.inf)
    row[0, [7, 30]] = torch.tensor([1.0, 3.0])
    (found,) = drawing.draw_candidates(row, [DraftRow(session, (), 5, 9)])
    assert set(found.token_ids) == {7, 30} and len(found.laws) == 2
    assert found.laws[1].token_ids == (found.token_ids[1],) and found.laws[1].probs == (1.0,)
    names = torch.arange(100, 150)
    (renamed,) = drawing.draw_candidates(row, [DraftRow(session, (), 5, 9)], names)
    assert renamed.token_ids == tuple(token + 100 for token in found.token_ids)
    assert renamed.laws[0].token_ids == tuple(token + 100 for token in found.laws[0].token_ids)


def test_chosen_ones_are_the_likeliest() -> None:
    session = DraftSession(SessionKey(1, "a"), 1, SamplingParams(top_k=3), [], acceptance=BLOCK)
    row = torch.tensor([[0.0, 4.0, 2.0, 3.0]])
    (found,) = drawing.draw_candidates(row, [DraftRow(session, (), 4)])
    assert found.token_ids == (1, 3, 2) and not found.laws
    assert found.confidences == pytest.approx(row[0, [1, 3, 2]].softmax(0).tolist())
