"""Rounds of sessions whose rule is "token" or "block": the proposal is judged by its distributions."""

from __future__ import annotations

import torch

from outrider.core import acceptance
from outrider.core.rounds import Walk
from outrider.core.sampling import target_probs
from outrider.verifying.work import Work


def judge(work: Work, logits: torch.Tensor) -> Walk:
    """What of a proposal is accepted, and the token that follows, by the session's own rule.

    Args:
        work: a round of a session whose rule is not "coupled".
        logits: float32 [1 + nodes, V], edited: of the root and of each node of the tree.

    Raises:
        InternalError: a row that is needed holds NaN, +inf, or nothing but -inf.
    """
    record, tree = work.session.record, work.tree

    def target(node: int) -> torch.Tensor:
        if node >= 0 and tree.token_ids[node] in record.stop.stop_token_ids:
            # Nothing counts after it, so any law does; a grammar that has ended may allow nothing.
            return torch.nn.functional.one_hot(torch.tensor(0), logits.shape[1]).to(torch.float64)
        # One row at a time: most rounds end before the last one is needed.
        return target_probs(logits[node + 1 : node + 2], [record.sampling])[0].cpu()

    own = acceptance.Round(record.sampling.seed, len(work.session.tokens), len(tree))
    (uniforms,) = acceptance.round_uniforms([own])
    return acceptance.judge(record.speculation.acceptance, tree, target, uniforms)
