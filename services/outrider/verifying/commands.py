"""Commands to drafters: each is told what it does not know yet, tokens and features. Engine thread only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.core.params import Acceptance
from outrider.verifying.features import FeatureFeed, Shipment, spread
from outrider.verifying.link_state import LinkState
from outrider.verifying.mailbox import Outcome
from outrider.verifying.session import DraftPhase, LinkDrafting, Session
from outrider.wire.messages import AdvanceDraft, CloseDraft, DraftCommand, OpenDraft


class Commands:
    """Makes commands, and keeps what each of a session's drafters was told."""

    def __init__(self, links: Mapping[str, LinkState], feed: FeatureFeed, *, vocab_size: int) -> None:
        """Args:
        links: all drafters of this verifier, by name.
        feed: the features that drafters need.
        vocab_size: rows of the target's output head.
        """
        self._links = links
        self._feed = feed
        self._vocab_size = vocab_size

    def open(self, session: Session, own: LinkDrafting) -> OpenDraft:
        """Begin on a drafter; nothing is asked yet."""
        own.phase, own.known, own.credited = DraftPhase.OPEN, len(session.tokens), 0
        self._feed.start(own.name, session.session_id)
        return OpenDraft(
            session.session_id,
            session.record.epoch,
            tuple(session.tokens),
            session.record.sampling,
            0,
            prompt_len=len(session.record.prompt),
            acceptance=self._rule(session, self._links[own.name]),
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
        return self._feed.take(own.name, session.session_id, session.sequence, nodes)

    def carry(self, session: Session, own: LinkDrafting, outcome: Outcome) -> None:
        """After a part of a prompt ran: send the features that an open drafter needs."""
        shipment = self._feed.take_chunk(own.name, session.session_id, session.sequence, own.known)
        if shipment.parts:
            command = AdvanceDraft(session.session_id, session.record.epoch, own.known, (), 0, 0)
            self.send(own.name, command, outcome, shipment)

    def catch_up(self, session: Session, own: LinkDrafting, outcome: Outcome) -> None:
        """Before the end: drafters that learn from what was served hear of all of it. Heads do not learn."""
        behind = own.phase is DraftPhase.OPEN and own.known < len(session.tokens)
        if behind and not self._feed.feeds(own.name):
            self.send(own.name, self.advance(session, own), outcome)

    def close(self, session: Session, own: LinkDrafting, outcome: Outcome) -> None:
        """The session is over for one drafter."""
        own.forget_round()
        self._feed.forget(own.name, session.session_id)
        if own.phase is DraftPhase.OPEN:
            self._put(own.name, CloseDraft(session.session_id, session.record.epoch), outcome)
        own.phase = DraftPhase.OFF

    def send(
        self,
        name: str,
        command: OpenDraft | AdvanceDraft,
        outcome: Outcome,
        shipment: Shipment | None = None,
    ) -> None:
        """Send a command, with features if there are any."""
        for part in spread(command, shipment) if shipment else [command]:
            self._put(name, part, outcome)

    def _rule(self, session: Session, link: LinkState) -> Acceptance:
        """By what rule the drafter has to draft.

        Past the target's head it may draw ids that cannot be verified. To drop just the proposals that hold
        one would bend the law of drawn tokens. Of tokens that coupled noise chose it may be done: the rules
        take them as given, whatever they are.
        """
        if link.vocab_size > self._vocab_size:
            return Acceptance.COUPLED
        return session.record.speculation.acceptance

    def _put(self, name: str, command: DraftCommand, outcome: Outcome) -> None:
        outcome.commands.setdefault((name, self._links[name].generation), []).append(command)
