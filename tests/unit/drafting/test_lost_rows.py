"""A model that overflows on one session's text costs that session its drafts, and no other."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.core.params import Acceptance, SamplingParams
from outrider.drafting.foreign.picking import ForeignPicker
from outrider.drafting.foreign.shared_ids import SharedIds
from outrider.drafting.picking.drawing import draw_candidates
from outrider.drafting.picking.rows import DraftRow
from outrider.drafting.session import DraftSession, SessionKey


@pytest.mark.parametrize("acceptance", Acceptance)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_rows_that_nothing_can_be_drawn_from_cost_nobody_else(
    acceptance: Acceptance, temperature: float, lost: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=3)
    sessions = [DraftSession(SessionKey(1, n), 1, sampling, [1], acceptance=acceptance) for n in "ab"]
    number = None if acceptance is Acceptance.COUPLED else 7
    rows = [DraftRow(session, (), 2, number) for session in sessions]
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(1))
    (alone,) = draw_candidates(logits[1:], rows[1:])
    logits[0] = lost
    spoilt, other = draw_candidates(logits, rows)
    assert other == alone
    assert spoilt.token_ids and all(0.0 <= own <= 1.0 for own in spoilt.confidences)


def test_a_pick_by_text_is_never_sure_of_what_is_no_number() -> None:
    empty = torch.empty(0, dtype=torch.int64)
    logits = torch.tensor([[math.nan, 1.0], [0.0, 2.0]])
    lost, other = ForeignPicker(SharedIds(empty, empty)).by_text(logits, [0, 1])
    assert lost.confidence == 0.0
    assert other.token_id == 1 and 0.5 < other.confidence < 1.0
