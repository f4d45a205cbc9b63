"""The next draft token of each session, by the rule that its proposals are accepted by."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core.acceptance import draft_uniforms, draw, ranked_law
from outrider.core.params import Acceptance
from outrider.core.sampling import coupled_picks, target_probs
from outrider.core.trees import SparseProbs
from outrider.drafting.session import DraftSession

MOST_PROBS = 32
"""Tokens that a drawn draft token may be one of. They travel with it (256 bytes), and rarer ones are hardly
ever accepted: on language models 32 tokens hold nearly all of what p and q have in common."""


def draw_next(
    logits: torch.Tensor, sessions: Sequence[DraftSession], vocabulary: torch.Tensor | None = None
) -> None:
    """Append one token to what each session has drafted.

    Args:
        logits: float32 [R, V], edited; one row a session.
        sessions: R sessions.
        vocabulary: int64 [V], the ids of the columns of a reduced draft vocabulary; None: column x is id x.

    Raises:
        InternalError: a row holds NaN, +inf, or nothing but -inf.
    """
    drawn = [row for row, own in enumerate(sessions) if own.acceptance is not Acceptance.COUPLED]
    if len(drawn) < len(sessions):
        coupled = [row for row, own in enumerate(sessions) if own.acceptance is Acceptance.COUPLED]
        part = logits[torch.tensor(coupled, device=logits.device)] if drawn else logits
        _pick(part, [sessions[row] for row in coupled], vocabulary)
    if drawn:
        part = logits[torch.tensor(drawn, device=logits.device)]
        _draw(part, [sessions[row] for row in drawn], vocabulary)


def _pick(logits: torch.Tensor, sessions: Sequence[DraftSession], vocabulary: torch.Tensor | None) -> None:
    """By the noise that the target picks by too."""
    picks = coupled_picks(logits, [(own.sampling, len(own)) for own in sessions], vocabulary)
    for session, token_id in zip(sessions, picks.tolist(), strict=True):
        session.ahead.append(token_id)


def _draw(logits: torch.Tensor, sessions: Sequence[DraftSession], vocabulary: torch.Tensor | None) -> None:
    """From the session's own processed distribution, truncated; which is kept, to be sent."""
    probs = target_probs(logits, [own.sampling for own in sessions]).cpu()
    uniforms = draft_uniforms([(own.sampling.seed, own.since, len(own)) for own in sessions])
    for session, row, uniform in zip(sessions, probs, uniforms, strict=True):
        law = ranked_law(row, MOST_PROBS)
        if vocabulary is not None:
            law = SparseProbs(tuple(vocabulary[list(law.token_ids)].tolist()), law.probs)
        chosen = draw(torch.tensor(law.probs, dtype=torch.float64), uniform)
        session.ahead.append(law.token_ids[chosen])
        session.laws.append(law)
