"""What to believe of a proposal. Pure."""

from __future__ import annotations

from outrider.core.errors import ProtocolError
from outrider.core.rounds import Proposal
from outrider.verifying.session import LinkDrafting, Session

UNUSABLE = ("oversized", "malformed")
"""Refusals of what was asked for, and came in time."""


def refusal(
    proposal: Proposal, session: Session | None, own: LinkDrafting | None, *, vocab_size: int, max_nodes: int
) -> str:
    """Why a proposal is not believed; empty if it is.

    It counts only if it comes from one of the session's drafters, carries its epoch and its present length,
    was asked for, is the first one, and is a well-formed tree.

    Args:
        proposal: as it came.
        session: that it names; None: there is none.
        own: the session's side of the drafter that it came from; None: it is none of the session's.
        vocab_size: rows of the target's output head.
        max_nodes: most nodes.
    """
    if session is None or own is None:
        return "unknown_session"
    if proposal.epoch != session.record.epoch:
        return "epoch"
    if proposal.base_len != len(session.tokens):
        return "late" if proposal.base_len < len(session.tokens) else "base_len"
    if own.proposal is not None:
        return "duplicate"
    if not own.wanted:
        return "unasked"
    if len(proposal.tree) > max_nodes:
        return "oversized"
    try:
        proposal.tree.validate(vocab_size=vocab_size, max_nodes=max_nodes)
    except ProtocolError:
        return "malformed"
    return ""
