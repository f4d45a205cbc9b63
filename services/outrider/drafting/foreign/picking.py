"""From logits over a foreign vocabulary to the next draft token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.logit_table import Columns
from outrider.drafting.foreign.shared_ids import SharedIds
from outrider.drafting.picking.drawing import draw_candidates
from outrider.drafting.picking.edits import edit_drafts
from outrider.drafting.picking.rows import DraftRow


@dataclass(frozen=True, slots=True)
class Pick:
    """A draft token."""

    token_id: int  # in the draft model's vocabulary
    confidence: float
    target_id: int = -1  # in the target's; -1: it was not picked by that


class ForeignPicker:
    """Picks by text (the likeliest draft token, whatever it is) or by shared ids, with the target's noise."""

    def __init__(self, shared: SharedIds) -> None:
        self._shared = shared
        self._columns = Columns.from_ids(shared.target) if len(shared) else None
        self._draft_ids = dict(zip(shared.target.tolist(), shared.draft.tolist(), strict=True))

    def by_text(self, logits: torch.Tensor, rows: Sequence[int]) -> list[Pick]:
        """The likeliest token of each of `rows` of float32 [R, V] logits."""
        if not rows:
            return []
        chosen = logits[list(rows)].softmax(-1).max(-1)
        return [
            Pick(token_id, 0.0 if math.isnan(confidence) else confidence)
            for token_id, confidence in zip(chosen.indices.tolist(), chosen.values.tolist(), strict=True)
        ]

    def by_shared_ids(
        self, logits: torch.Tensor, rows: Sequence[int], drafts: Sequence[DraftRow]
    ) -> list[Pick]:
        """The first of the race that the target runs too, among the tokens that both have.

        Args:
            logits: float32 [R, V].
            rows: which of them.
            drafts: what each of these comes after, in the target's ids.
        """
        if not rows:
            return []
        part = logits[list(rows)].index_select(1, self._shared.draft.to(logits.device))
        edit_drafts(part, drafts, self._columns)
        picks = []
        for drawn in draw_candidates(part, drafts, self._shared.target):
            target_id = drawn.token_ids[0]
            picks.append(Pick(self._draft_ids[target_id], drawn.confidences[0], target_id))
        return picks
