"""How many draft tokens a session may have while others run too. Pure."""

from __future__ import annotations


def draft_share(step_rows: int, sessions: int) -> int:
    """Draft tokens of each session, so that a step of all of them stays within `step_rows` rows.

    Verifying costs little while rows are few: a step reads all weights anyway. From some number of rows on
    each costs its full share, and a draft token that is not accepted takes it from somebody else. So with
    more sessions each has fewer, and at last none: then nobody waits for a drafter either.

    Args:
        step_rows: most rows of a step that holds drafts; 0: no bound.
        sessions: that run. Each has one row for its last token.
    """
    if not step_rows:
        return 1 << 30
    return max(0, step_rows // max(1, sessions) - 1)
