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
from outrider.drafting.session import DraftSession

log = logging.getLogger(__name__)


def edit_drafts(
    logits: torch.Tensor,
    sessions: Sequence[DraftSession],
    columns: Columns | None = None,
    grammars: DraftGrammars | None = None,
) -> None:
    """Edit the row of each session in place. What cannot be edited stays as it is, at the cost of acceptance.

    Args:
        logits: float32 [R, V], each the one after all tokens that its session has committed and drafted.
        sessions: R sessions.
        columns: ids of a reduced draft vocabulary.
        grammars: of the sessions, as far as they are followed.
    """
    edited = [row for row, session in enumerate(sessions) if is_edited(session.sampling)]
    if not edited:
        return
    rows: list[LogitRow | None] = [None] * len(sessions)
    for row in edited:
        rows[row] = _logit_row(sessions[row], grammars)
    try:
        edit_logits(logits, rows, columns)
    except OutriderError:
        log.exception("draft logits cannot be edited")
    # The draft vocabulary may lack all that is allowed. Then any token does.
    index = torch.tensor(edited, device=logits.device)
    dead = index[logits[index].amax(1) == float("-inf")]
    if len(dead):
        with torch.inference_mode():
            logits.index_fill_(0, dead, 0.0)


def _logit_row(session: DraftSession, grammars: DraftGrammars | None) -> LogitRow:
    if session.history is None:
        session.history = TokenHistory(session.prompt_len)
    session.history.keep_up(session.tokens)
    mask = grammars.mask(session) if grammars is not None else None
    return LogitRow(session.sampling, session.history, session.ahead, mask)
