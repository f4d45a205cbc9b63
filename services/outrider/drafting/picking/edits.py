"""Draft logits are edited as the target's are, so that penalties, bias and masks do not cost acceptance."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from outrider.core.editing import LogitRow, edit_logits, is_edited
from outrider.core.errors import OutriderError
from outrider.core.history import TokenHistory
from outrider.core.logit_table import Columns
from outrider.drafting.picking.grammars import DraftGrammars
from outrider.drafting.picking.rows import DraftRow

log = logging.getLogger(__name__)


def edit_drafts(
    logits: torch.Tensor,
    rows: Sequence[DraftRow],
    columns: Columns | None = None,
    grammars: DraftGrammars | None = None,
) -> None:
    """Edit rows in place, each by its own history. What cannot be edited stays, at the cost of acceptance.

    Args:
        logits: float32 [R, V].
        rows: what the R rows come after.
        columns: ids of a reduced draft vocabulary.
        grammars: of the sessions, as far as they are followed.
    """
    edited = [index for index, row in enumerate(rows) if is_edited(row.session.sampling)]
    if not edited:
        return
    plans: list[LogitRow | None] = [None] * len(rows)
    for place in edited:
        plans[place] = _logit_row(rows[place], grammars)
    try:
        edit_logits(logits, plans, columns)
    except OutriderError:
        log.exception("draft logits cannot be edited")
    # The draft vocabulary may lack all that is allowed. Then any token does.
    index = torch.tensor(edited, device=logits.device)
    dead = index[logits[index].amax(1) == float("-inf")]
    if len(dead):
        with torch.inference_mode():
            logits.index_fill_(0, dead, 0.0)


def _logit_row(row: DraftRow, grammars: DraftGrammars | None) -> LogitRow:
    session = row.session
    if session.history is None:
        session.history = TokenHistory(session.prompt_len)
    session.history.keep_up(session.tokens)
    mask = grammars.mask(session, row.above) if grammars is not None else None
    return LogitRow(session.sampling, session.history, row.above, mask)
