"""Rules that look right and are not, each with the right one beside it.

The wrong ones miss the target's law by a margin that no rounding explains: so these tests would notice them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from outrider.core.acceptance import draw
from outrider.core.params import Acceptance
from outrider.core.rounds import Walk
from outrider.core.trees import SparseProbs, TokenTree
from tests.unit.core.acceptance import drafters
from tests.unit.core.acceptance.enumeration import World, distance, law_of
from tests.unit.core.acceptance.worlds import (
    BLOCK,
    TOKEN,
    TOLERANCE,
    VOCABULARY,
    Drafter,
    Judge,
    Law,
    Tokens,
    WorldUniforms,
    dense,
    drafts,
    emitted_law,
    probs_over,
    rule,
    sampled_chain,
    sparse,
    target,
    target_law,
)

CLEAR = 0.01
Probs = Callable[[int], torch.Tensor]


def miss(judge_by: Judge, drafter: Drafter) -> float:
    return distance(emitted_law(judge_by, drafter), target_law())


def truncated(context: Tokens) -> Law:
    """The two likeliest tokens of the draft law, renormalised."""
    law = drafts(context)
    kept = sorted(range(VOCABULARY), key=lambda token: -law[token])[:2]
    total = sum(law[token] for token in kept)
    return tuple(prob / total if token in kept else 0.0 for token, prob in enumerate(law))


def telling(drafter: Drafter, told: Callable[[Tokens], Law]) -> Drafter:
    """The same tokens, with another law told of each."""

    def liar(context: Tokens, world: World) -> TokenTree:
        tree = drafter(context, world)
        above = [
            context + tuple(tree.token_ids[own] for own in tree.path_to(parent)) for parent in tree.parents
        ]
        return TokenTree(tree.token_ids, tree.parents, tuple(sparse(told(history)) for history in above))

    return liar


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
def test_case_17_q_is_what_was_really_sampled_from(acceptance: Acceptance) -> None:
    honest = sampled_chain(2, truncated)
    assert miss(rule(acceptance), honest) < TOLERANCE
    assert miss(rule(acceptance), telling(honest, drafts)) > CLEAR


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
@pytest.mark.parametrize("chosen", [drafters.likeliest, drafters.likeliest_tree, drafters.repeating])
def test_case_19_a_chosen_token_has_all_of_its_law(chosen: Drafter, acceptance: Acceptance) -> None:
    assert miss(rule(acceptance), chosen) < TOLERANCE


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
@pytest.mark.parametrize("chosen", [drafters.likeliest, drafters.likeliest_tree])
def test_case_19_as_if_it_had_been_drawn_is_wrong(chosen: Drafter, acceptance: Acceptance) -> None:
    assert miss(rule(acceptance), telling(chosen, drafts)) > CLEAR


def equal_to_a_sample(tree: TokenTree, probs: Probs, uniforms: WorldUniforms) -> Walk:
    """For one draft token: draw the target's own, whatever was proposed, and see whether it is the same."""
    own = draw(probs(-1), uniforms.residual())
    if not tree or own != tree.token_ids[0]:
        return Walk((), (own,))
    return Walk((0,), (own, draw(probs(0), uniforms.bonus())))


@pytest.mark.parametrize("context", [(), (0,), (0, 1), (2, 1)])
def test_case_20_acceptance_is_sum_min_p_q_and_not_sum_p_times_q(context: Tokens) -> None:
    p, q = target(context), drafts(context)

    def accepts(judge_by: Judge) -> float:
        def one(world: World) -> bool:
            tree = sampled_chain(1)(context, world)
            walk = judge_by(tree, probs_over(tree, context, target), WorldUniforms(world, len(context)))
            return bool(walk.nodes)

        return law_of(one).get(True, 0.0)

    overlap = sum(map(min, p, q))
    product = sum(a * b for a, b in zip(p, q, strict=True))
    assert accepts(rule(TOKEN)) == pytest.approx(overlap, abs=TOLERANCE)
    assert accepts(rule(BLOCK)) == pytest.approx(overlap, abs=TOLERANCE)
    assert accepts(equal_to_a_sample) == pytest.approx(product, abs=TOLERANCE)
    assert overlap >= product


def test_case_20_both_have_the_right_law() -> None:
    assert miss(rule(TOKEN), sampled_chain(1)) < TOLERANCE
    assert miss(equal_to_a_sample, sampled_chain(1)) < TOLERANCE


class _OneNoise(WorldUniforms):
    """The residual is drawn by the number that drew the first draft token."""

    def residual(self) -> float:
        return self._world.number("draft", self._base_len, 0)  # type: ignore[return-value]


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
def test_case_56_draft_and_residual_share_no_noise(acceptance: Acceptance) -> None:
    def shared(tree: TokenTree, probs: Probs, uniforms: WorldUniforms) -> Walk:
        return rule(acceptance)(tree, probs, _OneNoise(uniforms._world, uniforms._base_len))

    drafter = sampled_chain(1, lambda context: (0.45, 0.45, 0.1))
    assert miss(rule(acceptance), drafter) < TOLERANCE
    assert miss(shared, drafter) > CLEAR


def block(
    tree: TokenTree, probs: Probs, uniforms: WorldUniforms, *, stop: bool, token_residual: bool
) -> Walk:
    """Block verification in plain steps, with two mistakes to choose from."""
    kept, weight, kept_weight, count = 0, 1.0, 1.0, len(tree)
    for node, token in enumerate(tree.token_ids):
        q = _law(tree.draft_probs[node])
        weight = min(1.0, weight * float(probs(node - 1)[token]) / float(q[token]))
        chance = weight
        if node + 1 < count:
            left = float((weight * probs(node) - _law(tree.draft_probs[node + 1])).clamp(min=0).sum())
            chance = left / (left + 1.0 - weight) if left + 1.0 - weight > 0 else 1.0
        if uniforms.accept(node) < chance:
            kept, kept_weight = node + 1, weight
        elif stop:
            break
    accepted = tree.token_ids[:kept]
    if kept == count:
        return Walk(tuple(range(kept)), (*accepted, draw(probs(kept - 1), uniforms.bonus())))
    scale = 1.0 if token_residual else kept_weight
    rest = (scale * probs(kept - 1) - _law(tree.draft_probs[kept])).clamp(min=0)
    rest = rest if rest.sum() > 0 else probs(kept - 1)
    return Walk(tuple(range(kept)), (*accepted, draw(rest, uniforms.residual())))


def _law(told: SparseProbs) -> torch.Tensor:
    return dense(
        [dict(zip(told.token_ids, told.probs, strict=True)).get(token, 0.0) for token in range(VOCABULARY)]
    )


def variant(*, stop: bool = False, token_residual: bool = False) -> Judge:
    return lambda tree, probs, uniforms: block(
        tree, probs, uniforms, stop=stop, token_residual=token_residual
    )


def test_case_58_block_in_plain_steps_is_right() -> None:
    assert miss(variant(), sampled_chain(3)) < TOLERANCE


def test_case_58_to_stop_at_the_first_prefix_that_fails_is_wrong() -> None:
    assert miss(variant(stop=True), sampled_chain(3)) > CLEAR


def test_case_58_the_residual_of_a_token_is_wrong_for_a_block() -> None:
    assert miss(variant(token_residual=True), sampled_chain(3)) > CLEAR


def test_siblings_drawn_without_replacement_tell_what_their_elders_left() -> None:
    assert miss(rule(TOKEN), drafters.sampled_tree((2,))) < TOLERANCE
    assert miss(rule(TOKEN), drafters.sampled_tree((2,), tell_raw=True)) > CLEAR


def dropping(drafter: Drafter, token_id: int) -> Drafter:
    """Proposals that hold this token never arrive."""

    def dropped(context: Tokens, world: World) -> TokenTree:
        tree = drafter(context, world)
        return TokenTree() if token_id in tree.token_ids else tree

    return dropped


def chosen_by_noise(context: Tokens, world: World) -> TokenTree:
    """Drawn by noise that the rule does not see, and handed on as if chosen."""
    tree = sampled_chain(2)(context, world)
    return TokenTree(tree.token_ids, tree.parents)


@pytest.mark.parametrize("acceptance", [TOKEN, BLOCK])
def test_chosen_tokens_may_be_dropped_for_what_they_are_and_drawn_ones_may_not(
    acceptance: Acceptance,
) -> None:
    assert miss(rule(acceptance), chosen_by_noise) < TOLERANCE
    assert miss(rule(acceptance), dropping(chosen_by_noise, 1)) < TOLERANCE
    assert miss(rule(acceptance), dropping(sampled_chain(2), 1)) > CLEAR
