"""A drafter as the engine thread sees it."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.verifying.patience import Patience
from outrider.verifying.session import DraftPhase, LinkDrafting


@dataclass(slots=True)
class LinkState:
    """A drafter as the engine thread sees it."""

    name: str
    patience: Patience
    generation: int = 0
    up: bool = False
    draining: bool = False
    max_draft_tokens: int = 0
    vocab_size: int = 0  # rows of its output head
    tree_nodes: int = 0  # most draft tokens of its trees; 0: it drafts chains

    @property
    def takes_sessions(self) -> bool:
        """Whether sessions may be opened on it."""
        return self.up and not self.draining

    @property
    def usual_s(self) -> float:
        """Its usual latency in seconds; 0 as long as nothing is known."""
        return self.patience.usual_s or 0.0

    def may_be_asked(self, own: LinkDrafting, now: float) -> bool:
        """Whether a session that is not off there may ask it, or open on it, now."""
        if not self.up or self.patience.resting(now):
            return False
        return own.phase is DraftPhase.OPEN or (not self.draining and now >= own.reopen_at)

    def nodes(self, most: int, depth: int) -> int:
        """Most draft tokens of a proposal that is `depth` deep, of `most` that may be; 0: a chain."""
        nodes = min(self.tree_nodes, self.max_draft_tokens, most)
        return nodes if nodes > depth else 0
