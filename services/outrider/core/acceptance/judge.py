"""Which rule a session goes by, and the rule applied to a proposal."""

from __future__ import annotations

from outrider.core.acceptance.block_rule import judge_block
from outrider.core.acceptance.token_rule import Target, judge_token
from outrider.core.acceptance.uniforms import Uniforms
from outrider.core.params import Acceptance, SamplingParams
from outrider.core.rounds import Walk
from outrider.core.trees import TokenTree


def rule_of(acceptance: Acceptance, sampling: SamplingParams) -> Acceptance:
    """The rule in force. At temperature 0 all emit the greedy tokens, and "coupled" does so at least cost."""
    return Acceptance.COUPLED if sampling.temperature == 0.0 else acceptance


def judge(rule: Acceptance, tree: TokenTree, target: Target, uniforms: Uniforms) -> Walk:
    """Judge a proposal by "token" or "block". Trees with branches always go by "token".

    That choice looks at the tree's shape alone, so it does not touch the law.
    """
    if rule is Acceptance.BLOCK and tree.is_chain:
        return judge_block(tree, target, uniforms)
    return judge_token(tree, target, uniforms)
