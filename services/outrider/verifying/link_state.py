"""A drafter replica as the engine thread sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.verifying.patience import Patience
from outrider.verifying.session import DraftPhase, LinkDrafting
from outrider.wire.messages import DrafterLoad

ALARM_TOKENS = 256
"""So many draft tokens of a model, refused one after the other, are no bad luck: in chains of 4 they are the
first tokens of 64 proposals, all of them wrong."""


@dataclass(slots=True)
class LinkState:
    """A drafter replica as the engine thread sees it."""

    link: str  # key of its link
    drafter: str  # its name in the configuration
    patience: Patience
    tree_nodes: int = 0  # most draft tokens of its trees; 0: it drafts chains
    generation: int = 0
    up: bool = False
    draining: bool = False
    max_draft_tokens: int = 0
    max_sessions: int = 0
    vocab_size: int = 0  # rows of its output head
    sessions: set[str] = field(default_factory=set)  # of this verifier, open there
    others: int = 0  # sessions of other verifiers there, as it told last
    queued: int = 0  # sessions that wait there for a proposal, as it told last
    instance_id: str = ""  # of the process
    in_vain: int = 0  # its draft tokens that were verified since the last one was accepted

    @property
    def address(self) -> str:
        """Where it is."""
        return self.link.rpartition("@")[2]

    @property
    def takes_sessions(self) -> bool:
        """Whether sessions may be opened on it."""
        return self.up and not self.draining

    @property
    def usual_s(self) -> float:
        """Its usual latency in seconds; 0 as long as nothing is known."""
        return self.patience.usual_s or 0.0

    @property
    def fullness(self) -> float:
        """Share of its sessions that are taken; above 1 if it has to drop some."""
        return (len(self.sessions) + self.others) / max(1, self.max_sessions)

    @property
    def useless(self) -> bool:
        """Whether none of its drafts are accepted: its head, or its model, cannot be the right one.

        One without a model copies text, and some texts hold nothing to copy.
        """
        return bool(self.vocab_size) and self.in_vain >= ALARM_TOKENS

    def told(self, load: DrafterLoad) -> None:
        """It says how busy it is. Its count holds this verifier's sessions too."""
        self.others = max(0, load.sessions - len(self.sessions))
        self.queued = load.queued

    def may_be_asked(self, own: LinkDrafting, now: float) -> bool:
        """Whether a session that is not off there may ask it, or open on it, now."""
        if not self.up or self.patience.resting(now):
            return False
        holds = own.phase is DraftPhase.OPEN and own.link == self.link
        return holds or (self.takes_sessions and now >= own.refused.get(self.link, 0.0))

    def nodes(self, most: int, depth: int) -> int:
        """Most draft tokens of a proposal that is `depth` deep, of `most` that may be; 0: a chain."""
        nodes = min(self.tree_nodes, self.max_draft_tokens, most)
        return nodes if nodes > depth else 0
