"""The rule "block": a chain of draft tokens is judged as a whole, and never accepts less than "token" does.

Source: Sun et al., "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444), algorithm 2.
"""

from __future__ import annotations

from outrider.core.acceptance.laws import DraftLaw, draw, normalised
from outrider.core.acceptance.token_rule import Target
from outrider.core.acceptance.uniforms import Uniforms
from outrider.core.rounds import Walk
from outrider.core.trees import TokenTree


def judge_block(chain: TokenTree, target: Target, uniforms: Uniforms) -> Walk:
    """Accept the longest of all prefixes that pass, each tested by a number of its own.

    With w_0 = 1 and w_i = min(1, w_(i-1) p(x_i)/q(x_i)), the prefix of i tokens passes with

        h_i = s / (s + 1 - w_i),  s = sum over x of max(w_i p(x) - q(x), 0)     after the prefix, i < n
        h_n = w_n

    A shorter prefix that fails does not end the test. The token after the longest one that passes comes from
    norm(max(w_i p - q, 0)), after all n from p.

    Args:
        chain: as in `judge_token`, without branches.
        target: the processed distributions.
        uniforms: of this round.
    """
    count = len(chain)
    laws = [DraftLaw.of(chain, node) for node in range(count)]
    kept, weight = 0, 1.0
    probs = target(-1)
    rest = normalised(laws[0].excess(probs), probs) if laws else probs
    for node, token_id in enumerate(chain.token_ids):
        draft = laws[node].prob(token_id)
        weight = min(1.0, weight * float(probs[token_id]) / draft) if draft > 0 else 0.0
        if weight == 0.0:
            break  # nor does anything longer pass
        probs = target(node)
        if node + 1 == count:
            chance, left = weight, probs
        else:
            left = laws[node + 1].excess(weight * probs)
            chance = _chance(float(left.sum()), weight)
        if uniforms.accept(node) < chance:
            kept, rest = node + 1, normalised(left, probs)
    last = draw(rest, uniforms.bonus() if kept == count else uniforms.residual())
    return Walk(tuple(range(kept)), (*chain.token_ids[:kept], last))


def _chance(left: float, weight: float) -> float:
    """h_i. With w_i = 1 every longer prefix that could fail has something left, so 0/0 counts as 1."""
    return 1.0 if weight == 1.0 else left / (left + 1.0 - weight)
