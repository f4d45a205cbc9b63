"""Edits once more, in plain Python: one row, one id at a time, the history counted anew; numpy float32."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from outrider.core.params import LogitEdits


def edited(
    logits: Sequence[float],
    edits: LogitEdits,
    prompt: Sequence[int],
    output: Sequence[int],
    grammar_allows: Collection[int] | None = None,
) -> list[float]:
    """`output` holds everything generated before the token, draft tokens included."""
    return [
        _edited(token_id, np.float32(logit), edits, list(prompt), list(output), grammar_allows)
        for token_id, logit in enumerate(logits)
    ]


def _edited(
    token_id: int,
    logit: np.float32,
    edits: LogitEdits,
    prompt: list[int],
    output: list[int],
    grammar_allows: Collection[int] | None,
) -> float:
    if grammar_allows is not None and token_id not in grammar_allows:
        return -np.inf
    if edits.allowed_token_ids and token_id not in edits.allowed_token_ids:
        return -np.inf
    for *before, last in edits.bad_words:
        if last == token_id and output[len(output) - len(before) :] == before and len(before) <= len(output):
            return -np.inf
    if token_id in edits.end_token_ids and len(output) < edits.min_tokens:
        return -np.inf
    for biased, value in edits.logit_bias:
        if biased == token_id:
            logit = logit + np.float32(value)
    if token_id in prompt or token_id in output:
        penalty = np.float32(edits.repetition_penalty)
        logit = logit / penalty if logit > 0 else logit * penalty
    logit = logit - np.float32(edits.frequency_penalty) * np.float32(output.count(token_id))
    if token_id in output:
        logit = logit - np.float32(edits.presence_penalty)
    return float(logit)
