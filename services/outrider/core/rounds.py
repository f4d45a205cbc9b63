"""What passes between drafter and verifier in a round, and what comes of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from outrider.core.trees import TokenTree


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens for one session, fenced by epoch and base length."""

    session_id: str
    epoch: int
    base_len: int  # tokens of the session, prompt included, that the tree continues
    tree: TokenTree
    run_ahead_hit: bool = False
    draft_us: int = 0  # from command to proposal, in the drafter
    forward_us: int = 0  # of this, in the draft model's forwards


class StaleReason(enum.Enum):
    """Why a drafter cannot draft for a session."""

    UNKNOWN = "unknown"
    DIVERGED = "diverged"
    TOO_LONG = "too_long"
    FULL = "full"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Walk:
    """Where the target's picks lead through a tree.

    `nodes` are the accepted draft nodes from the top down; `token_ids` are their ids followed by
    the target's own next pick (the bonus token), so one more than `nodes`.
    """

    nodes: tuple[int, ...]
    token_ids: tuple[int, ...]
