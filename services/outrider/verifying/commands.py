"""Commands to drafters: each is told what it does not know yet, tokens and features. Engine thread only."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.params import Acceptance
from outrider.verifying.drafter_pool import DrafterPool
from outrider.verifying.features import FeatureFeed, Shipment, spread
from outrider.verifying.link_state import LinkState
from outrider.verifying.mailbox import Outcome
from outrider.verifying.session import DraftPhase, LinkDrafting, Session
from outrider.wire.messages import AdvanceDraft, CloseDraft, DraftCommand, OpenDraft


class Commands:
    """Makes commands, and keeps what each of a session's drafters was told."""

    def __init__(self, pool: DrafterPool, feed: FeatureFeed, *, vocab_size: int) -> None:
        """Args:
        pool: all drafters of this verifier.
        feed: the features that drafters need.
        vocab_size: rows of the target's output head.
        """
        self._pool = pool
        self._feed = feed
        self._vocab_size = vocab_size

    def open(self, session: Session, own: LinkDrafting, link: LinkState) -> OpenDraft:
        """Begin on a drafter's replica; nothing is asked yet."""
        own.phase, own.known, own.credited = DraftPhase.OPEN, len(session.tokens), 0
        own.link = link.link
        link.sessions.add(session.session_id)
        self._feed.start(own.link, session.session_id)
        return OpenDraft(
            session.session_id,
            session.record.epoch,
            tuple(session.tokens),
            session.record.sampling,
            0,
            prompt_len=len(session.record.prompt),
            acceptance=self._rule(session, link),
            tenant=session.record.cache_salt,
        )

    def advance(self, session: Session, own: LinkDrafting) -> AdvanceDraft:
        """All that was committed since the drafter heard of the session last; nothing is asked yet."""
        base, own.known = own.known, len(session.tokens)
        credited, own.credited = own.credited, 0
        token_ids = tuple(session.tokens[base:])
        return AdvanceDraft(
            session.session_id, session.record.epoch, base, token_ids, min(credited, len(token_ids)), 0
        )

    def rows(self, session: Session, own: LinkDrafting, nodes: Sequence[int]) -> Shipment:
        """The features that come next; `nodes` are those of the last step that will be committed."""
        return self._feed.take(own.link, session.session_id, session.sequence, nodes)

    def carry(self, session: Session, own: LinkDrafting, outcome: Outcome) -> None:
        """After a part of a prompt ran: send the features that an open drafter needs."""
        shipment = self._feed.take_chunk(own.link, session.session_id, session.sequence, own.known)
        if shipment.parts:
            command = AdvanceDraft(session.session_id, session.record.epoch, own.known, (), 0, 0)
            self.send(own, command, outcome, shipment)

    def catch_up(self, session: Session, own: LinkDrafting, outcome: Outcome) -> None:
        """Before the end: drafters that learn from what was served hear of all of it. Heads do not learn."""
        behind = own.phase is DraftPhase.OPEN and own.known < len(session.tokens)
        if behind and not self._feed.feeds(own.link):
            self.send(own, self.advance(session, own), outcome)

    def close(self, session: Session, own: LinkDrafting, outcome: Outcome) -> None:
        """The session is over for one drafter."""
        own.forget_round()
        self.leave(session, own, outcome)
        own.phase = DraftPhase.OFF

    def leave(self, session: Session, own: LinkDrafting, outcome: Outcome) -> None:
        """The session goes on without the replica that holds it, if one does."""
        if (holder := self._pool.holder(own)) is not None:
            self._put(own.link, CloseDraft(session.session_id, session.record.epoch), outcome)
            self.lost(session, own, holder)
        own.link = ""

    def lost(self, session: Session, own: LinkDrafting, holder: LinkState) -> None:
        """The replica does not hold the session any more."""
        holder.sessions.discard(session.session_id)
        self._feed.forget(holder.link, session.session_id)
        own.phase = DraftPhase.ABSENT

    def send(
        self,
        own: LinkDrafting,
        command: OpenDraft | AdvanceDraft,
        outcome: Outcome,
        shipment: Shipment | None = None,
    ) -> None:
        """Send a command to the replica that the session is open on, with features if there are any."""
        for part in spread(command, shipment) if shipment else [command]:
            self._put(own.link, part, outcome)

    def _rule(self, session: Session, link: LinkState) -> Acceptance:
        """By what rule the drafter has to draft.

        Past the target's head it may draw ids that cannot be verified. To drop just the proposals that hold
        one would bend the law of drawn tokens. Of tokens that coupled noise chose it may be done: the rules
        take them as given, whatever they are.
        """
        if link.vocab_size > self._vocab_size:
            return Acceptance.COUPLED
        return session.record.speculation.acceptance

    def _put(self, link: str, command: DraftCommand, outcome: Outcome) -> None:
        outcome.commands.setdefault((link, self._pool[link].generation), []).append(command)
