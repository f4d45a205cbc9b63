"""Rounds of sessions whose rule is "token" or "block": the proposal is judged by its distributions."""

from __future__ import annotations

import torch

from outrider.core import acceptance
from outrider.core.errors import OutriderError
from outrider.core.rounds import Walk
from outrider.core.sampling import target_probs
from outrider.verifying.work import Work


def judge(work: Work, logits: torch.Tensor) -> Walk:
    """What of a proposal is accepted, and the token that follows, by the session's own rule.

    Args:
        work: a round of a session whose rule is not "coupled".
        logits: float32 [1 + nodes, V], edited: of the root and of each node of the tree.

    Raises:
        InternalError: a row on the accepted path holds NaN, +inf, or nothing but -inf.
    """
    record, tree = work.session.record, work.tree

    certain = torch.nn.functional.one_hot(torch.tensor(0), logits.shape[1]).to(torch.float64)
    failed: dict[int, OutriderError] = {}

    def target(node: int) -> torch.Tensor:
        if node >= 0 and tree.token_ids[node] in record.stop.stop_token_ids:
            # Nothing counts after it, so any law does; a grammar that has ended may allow nothing.
            return certain
        try:
            # One row at a time: most rounds end before the last one is needed.
            return target_probs(logits[node + 1 : node + 2], [record.sampling])[0].cpu()
        except OutriderError as error:
            # "block" looks further than it accepts, and what lies behind must not touch what is accepted.
            failed[node] = error
            return certain

    own = acceptance.Round(record.sampling.seed, len(work.session.tokens), len(tree))
    (uniforms,) = acceptance.round_uniforms([own])
    walk = acceptance.judge(record.speculation.acceptance, tree, target, uniforms)
    for node in (-1, *walk.nodes):
        if node in failed:
            raise failed[node]
    return walk
