"""The rule "token": each draft token is judged by itself; in trees, siblings one after another.

Sources: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (arXiv
2211.17192); Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2302.01318);
siblings: Miao et al., "SpecInfer" (2305.09781), multi-step speculative sampling.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from outrider.core.acceptance.laws import DraftLaw, draw, normalised
from outrider.core.acceptance.uniforms import Uniforms
from outrider.core.rounds import Walk
from outrider.core.trees import TokenTree

Target = Callable[[int], torch.Tensor]
"""Node (-1: the last committed token) to the target's distribution after it, float64 [V] on the CPU."""


def judge_token(tree: TokenTree, target: Target, uniforms: Uniforms) -> Walk:
    """Go down the tree: accept x with min(1, p(x)/q(x)), else go on with norm(max(p - q, 0)).

    Siblings are tried in their order. q of each is what it was drawn from given its elder siblings, so
    drawing them without replacement needs nothing more: p is then what the elders' rejections left.

    Args:
        tree: with `draft_probs`, or without: then its tokens were chosen, not drawn.
        target: the processed distributions.
        uniforms: of this round.
    """
    children = tree.children()
    nodes: list[int] = []
    node = -1
    while True:
        law, rejected, accepted = target(node), False, None
        for token_id, child in children.get(node, {}).items():
            draft = DraftLaw.of(tree, child)
            if uniforms.accept(child) < _ratio(float(law[token_id]), draft.prob(token_id)):
                accepted = child
                break
            law, rejected = normalised(draft.excess(law), law), True
        if accepted is None:
            last = draw(law, uniforms.residual() if rejected else uniforms.bonus())
            return Walk(tuple(nodes), (*(tree.token_ids[own] for own in nodes), last))
        nodes.append(accepted)
        node = accepted


def _ratio(target: float, draft: float) -> float:
    """p/q; nothing speaks for a token that its own law never gives."""
    return target / draft if draft > 0 else 0.0
