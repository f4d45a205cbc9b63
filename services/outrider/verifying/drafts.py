"""The engine thread's side of drafting: what to ask of drafters, and what to believe of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from outrider.core.errors import ProtocolError
from outrider.core.params import Acceptance
from outrider.core.rounds import Proposal, StaleReason
from outrider.verifying.features import FeatureFeed, spread
from outrider.verifying.mailbox import LinkUp, Outcome
from outrider.verifying.patience import Patience
from outrider.verifying.rounds import Settled
from outrider.verifying.session import DraftPhase, Session
from outrider.wire.messages import AdvanceDraft, CloseDraft, DraftCommand, OpenDraft, Stale

_FULL_BACKOFF_S = 1.0
"""How long a session stays away from a drafter that said it is full."""


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


class DraftDesk:
    """Keeps each session's drafter informed, and takes proposals in.

    A proposal counts only if it comes from the session's own drafter, carries its epoch and its
    present length, was asked for, is the first one, and is a well-formed tree. All else is
    dropped and counted by reason.
    """

    def __init__(
        self,
        links: Iterable[LinkState],
        *,
        vocab_size: int,
        max_nodes: int,
        feed: FeatureFeed,
        dropped: Callable[[str, str], None],
        resting: Callable[[str, bool], None],
    ) -> None:
        """Args:
        links: all drafters of this verifier.
        vocab_size: rows of the target's output head.
        max_nodes: most nodes in a proposal.
        feed: the features that drafters need.
        dropped: told drafter and reason of each proposal that is dropped.
        resting: told when a drafter begins and ends to rest.
        """
        self._links = {link.name: link for link in links}
        self._vocab_size = vocab_size
        self._max_nodes = max_nodes
        self._feed = feed
        self._dropped = dropped
        self._resting = resting

    def link_up(self, event: LinkUp) -> None:
        """A drafter is there (again); sessions are opened on it as their rounds come."""
        link = self._links[event.link]
        link.generation = event.generation
        link.up, link.draining = True, False
        link.max_draft_tokens = event.info.max_draft_tokens
        link.vocab_size = event.info.model.vocab_size
        link.patience.reset()
        self._feed.link_up(event.link, event.info)

    def link_down(self, name: str, generation: int, sessions: Iterable[Session]) -> None:
        """A drafter is gone: nobody waits for it any more."""
        link = self._links[name]
        if link.generation != generation:
            return
        link.up = False
        for session in sessions:
            if session.drafting.link == name and session.drafting.phase is DraftPhase.OPEN:
                session.drafting.phase = DraftPhase.ABSENT
                session.drafting.wait_until = None

    def drain(self, name: str, generation: int) -> None:
        """A drafter is about to stop: what it holds goes on until the link ends."""
        link = self._links[name]
        link.draining = link.draining or link.generation == generation

    def took(self, name: str, generation: int, feature_bytes: int) -> None:
        """So many bytes of features went out to a drafter: others may follow."""
        if self._links[name].generation == generation:
            self._feed.took(name, feature_bytes)

    def admit(self, session: Session, outcome: Outcome) -> None:
        """Let the drafter prefill while the verifier does. The first round takes no proposal: it
        is the last chunk of the prompt."""
        drafting = session.drafting
        link = self._links.get(drafting.link)
        if drafting.phase is DraftPhase.ABSENT and link and link.up and not link.draining:
            drafting.phase = DraftPhase.OPEN
            self._feed.start(link.name, session.session_id)
            self._send(link, self._open(session, link, 0, 0.0, ""), outcome)

    def carry(self, session: Session, outcome: Outcome) -> None:
        """After a part of a prompt ran: send the features that its drafter needs."""
        drafting = session.drafting
        if drafting.phase is not DraftPhase.OPEN:
            return
        link, epoch = self._links[drafting.link], session.record.epoch
        shipment = self._feed.take_chunk(link.name, session.session_id, session.sequence)
        if shipment.parts:
            command = AdvanceDraft(session.session_id, epoch, len(session.tokens), (), 0, 0)
            for part in spread(command, shipment):
                self._send(link, part, outcome)

    def ask(
        self,
        session: Session,
        settled: Settled,
        now: float,
        outcome: Outcome,
        nodes: Sequence[int] = (),
    ) -> None:
        """After a round of a session that goes on: tell the outcome, ask for the next proposal.

        `nodes` are those of the round's step whose KV is about to be kept.
        """
        drafting = session.drafting
        drafting.forget_round()
        link = self._links.get(drafting.link)
        if drafting.phase is DraftPhase.OFF or link is None or not link.up:
            return
        length = min(drafting.limit, session.remaining - 1, link.max_draft_tokens)
        patience = link.patience.wait_s(now)
        if drafting.phase is DraftPhase.ABSENT:
            if length < 1 or not patience or link.draining or now < drafting.reopen_at:
                return
            drafting.phase = DraftPhase.OPEN
            self._feed.start(link.name, session.session_id)
            shipment = self._feed.take(link.name, session.session_id, session.sequence, nodes)
            if not shipment.complete:
                length = 0
            traceparent = session.spans.begin() if session.spans else ""
            command: OpenDraft | AdvanceDraft = self._open(session, link, length, patience, traceparent)
        else:
            if length < 1:
                return  # the next round is the last one
            shipment = self._feed.take(link.name, session.session_id, session.sequence, nodes)
            if not patience or not shipment.complete:
                length = 0  # it rests, or lacks features: let it keep up, and expect nothing
            traceparent = session.spans.begin() if session.spans else ""
            command = self._advance(session, settled, length, patience, traceparent)
        if length:
            drafting.wanted = length
            drafting.nodes = self._nodes(session, link, length)
            command = replace(command, draft_nodes=drafting.nodes)
            drafting.asked_at = now
            drafting.wait_until = now + patience
        for part in spread(command, shipment):
            self._send(link, part, outcome)

    def _nodes(self, session: Session, link: LinkState, length: int) -> int:
        """Most draft tokens of the next proposal, which is `length` deep; 0: a chain."""
        asked = session.record.speculation.max_draft_tokens
        most = self._max_nodes if asked is None else min(asked, self._max_nodes)
        nodes = min(link.tree_nodes, link.max_draft_tokens, most)
        return nodes if nodes > length else 0

    def close(self, session: Session, outcome: Outcome) -> None:
        """The session is over, or goes on without drafts."""
        drafting = session.drafting
        drafting.forget_round()
        self._feed.forget(drafting.link, session.session_id)
        if drafting.phase is DraftPhase.OPEN:
            link = self._links[drafting.link]
            self._send(link, CloseDraft(session.session_id, session.record.epoch), outcome)
        drafting.phase = DraftPhase.OFF

    def take(self, name: str, proposal: Proposal, session: Session | None, now: float) -> None:
        """A proposal came: believe it, or drop and count it."""
        reason = self._refusal(name, proposal, session)
        if session is not None and reason in ("", "late"):
            self._observe(name, proposal, session, now, late=bool(reason))
        if reason or session is None:
            self._dropped(name, reason)
            return
        session.drafting.proposal = proposal
        session.drafting.wait_until = None

    def stale(self, name: str, event: Stale, session: Session | None, now: float, outcome: Outcome) -> None:
        """A drafter cannot draft for a session: open it again later, or never."""
        if session is None or session.record.epoch != event.epoch or session.drafting.link != name:
            return
        drafting = session.drafting
        if drafting.phase is not DraftPhase.OPEN:
            return
        drafting.wait_until = None
        if event.reason in (StaleReason.TOO_LONG, StaleReason.INVALID):
            self.close(session, outcome)
            return
        drafting.phase = DraftPhase.ABSENT
        if event.reason is StaleReason.FULL:
            drafting.reopen_at = now + _FULL_BACKOFF_S

    def missed(self, sessions: Iterable[Session], now: float) -> None:
        """These sessions step now although they await a proposal: their patience ran out."""
        late: set[str] = set()
        for session in sessions:
            session.drafting.missed_len = len(session.tokens)
            session.drafting.missed_asked_at = session.drafting.asked_at
            late.add(session.drafting.link)
        for name in late:
            patience = self._links[name].patience
            patience.miss(now)
            if patience.resting(now):
                self._resting(name, True)

    def _refusal(self, name: str, proposal: Proposal, session: Session | None) -> str:
        """Why a proposal is not believed; empty if it is."""
        if session is None or session.drafting.link != name:
            return "unknown_session"
        drafting = session.drafting
        if proposal.epoch != session.record.epoch:
            return "epoch"
        if proposal.base_len != len(session.tokens):
            return "late" if proposal.base_len < len(session.tokens) else "base_len"
        if drafting.proposal is not None:
            return "duplicate"
        if not drafting.wanted:
            return "unasked"
        if len(proposal.tree) > self._max_nodes:
            return "oversized"
        try:
            proposal.tree.validate(vocab_size=self._vocab_size, max_nodes=self._max_nodes)
        except ProtocolError:
            return "malformed"
        return ""

    def _observe(self, name: str, proposal: Proposal, session: Session, now: float, *, late: bool) -> None:
        """Learn the drafter's latency; of late proposals only from the last one missed."""
        link, drafting = self._links[name], session.drafting
        if not late:
            link.patience.observe(now - drafting.asked_at)
            if link.patience.hit():
                self._resting(name, False)
        elif proposal.base_len == drafting.missed_len:
            link.patience.observe(now - drafting.missed_asked_at)

    def _rule(self, session: Session, link: LinkState) -> Acceptance:
        """By what rule the drafter has to draft.

        Past the target's head it may draw ids that cannot be verified. To drop just the proposals that hold
        one would bend the law of drawn tokens. Of tokens that coupled noise chose it may be done: the rules
        take them as given, whatever they are.
        """
        if link.vocab_size > self._vocab_size:
            return Acceptance.COUPLED
        return session.record.speculation.acceptance

    def _open(
        self, session: Session, link: LinkState, length: int, patience: float, traceparent: str
    ) -> OpenDraft:
        return OpenDraft(
            session.session_id,
            session.record.epoch,
            tuple(session.tokens),
            session.record.sampling,
            length,
            traceparent=traceparent,
            patience_us=round(patience * 1e6),
            prompt_len=len(session.record.prompt),
            acceptance=self._rule(session, link),
            tenant=session.record.cache_salt,
        )

    def _advance(
        self, session: Session, settled: Settled, length: int, patience: float, traceparent: str
    ) -> AdvanceDraft:
        return AdvanceDraft(
            session.session_id,
            session.record.epoch,
            len(session.tokens) - len(settled.token_ids),
            settled.token_ids,
            settled.accepted,
            length,
            traceparent=traceparent,
            patience_us=round(patience * 1e6),
        )

    def _send(self, link: LinkState, command: DraftCommand, outcome: Outcome) -> None:
        outcome.commands.setdefault((link.name, link.generation), []).append(command)
