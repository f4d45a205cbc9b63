"""The engine thread's side of drafting: which drafters know what of a session, and what they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from outrider.core.rounds import Proposal, StaleReason
from outrider.core.trees import TokenTree
from outrider.verifying.choice import Choice
from outrider.verifying.commands import Commands
from outrider.verifying.features import FeatureFeed
from outrider.verifying.fusion.council import Council
from outrider.verifying.link_state import LinkState
from outrider.verifying.mailbox import Admit, LinkUp, Outcome
from outrider.verifying.proposals import UNUSABLE, refusal
from outrider.verifying.rounds import Settled
from outrider.verifying.session import Drafting, DraftPhase, LinkDrafting, Session
from outrider.wire.messages import AdvanceDraft, OpenDraft, Stale

_BACKOFF_S = 1.0
"""How long a session stays away from a drafter that said it is full, or that fails."""
_FAILURES = 3
"""From so many lost sessions in a row on it fails: each opening would take it the whole text, for nothing."""
_KEEP_UP = 48
"""A drafter that is not asked hears of commits when there are so many: one by one they would cost it more."""


class DraftDesk:
    """Keeps each session's drafters informed, asks those that are worth it, and takes proposals in."""

    def __init__(
        self,
        links: Iterable[LinkState],
        *,
        vocab_size: int,
        max_nodes: int,
        feed: FeatureFeed,
        council: Council,
        dropped: Callable[[str, str], None],
        resting: Callable[[str, bool], None],
    ) -> None:
        """Args:
        links: all drafters of this verifier.
        vocab_size: rows of the target's output head.
        max_nodes: most nodes in a proposal.
        feed: the features that drafters need.
        council: what is learned of drafters, for sessions with several of them.
        dropped: told drafter and reason of each proposal that is dropped.
        resting: told when a drafter begins and ends to rest.
        """
        self._links = {link.name: link for link in links}
        self._vocab_size = vocab_size
        self._max_nodes = max_nodes
        self._feed = feed
        self._choice = Choice(self._links, council, max_nodes=max_nodes)
        self._commands = Commands(self._links, feed, vocab_size=vocab_size)
        self._dropped = dropped
        self._resting = resting
        self.share = max_nodes  # most draft tokens of a session, as the load has it

    # Links

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
            own = session.drafting.links.get(name)
            if own is not None and own.phase is DraftPhase.OPEN:
                own.phase = DraftPhase.ABSENT
                own.wait_until = None

    def drain(self, name: str, generation: int) -> None:
        """A drafter is about to stop: what it holds goes on until the link ends."""
        link = self._links[name]
        link.draining = link.draining or link.generation == generation

    def took(self, name: str, generation: int, feature_bytes: int) -> None:
        """So many bytes of features went out to a drafter: others may follow."""
        if self._links[name].generation == generation:
            self._feed.took(name, feature_bytes)

    def stepped(self, seconds: float) -> None:
        """A step of the target without prompts took so long."""
        self._choice.stepped(seconds)

    # Sessions

    def begin(self, item: Admit) -> Drafting:
        """A session's side of drafting, before anything is sent."""
        return self._choice.begin(item)

    def admit(self, session: Session, now: float, outcome: Outcome) -> None:
        """Let drafters prefill while the verifier does. The first round takes no proposal: it
        is the last chunk of the prompt."""
        if session.remaining < 3:
            return  # after the first round one token is left at most, and nobody is asked for it
        for own in self._choice.chosen(session.drafting, now):
            if own.phase is DraftPhase.ABSENT and self._links[own.name].takes_sessions:
                self._commands.send(own.name, self._commands.open(session, own), outcome)

    def carry(self, session: Session, outcome: Outcome) -> None:
        """After a part of a prompt ran: send the features that its drafters need."""
        for own in session.drafting.links.values():
            if own.phase is DraftPhase.OPEN:
                self._commands.carry(session, own, outcome)

    def ask(
        self, session: Session, settled: Settled, now: float, outcome: Outcome, nodes: Sequence[int] = ()
    ) -> None:
        """After a round of a session that goes on: tell the outcome, ask for the next proposals.

        `nodes` are those of the round's step whose KV is about to be kept.
        """
        drafting = session.drafting
        if not drafting.links:
            return
        self._choice.learn(drafting, settled, now)
        drafting.forget_round()
        if session.remaining < 2:
            return  # the next round is the last one
        chosen = {own.name for own in self._choice.chosen(drafting, now)}
        for own in list(drafting.links.values()):
            link = self._links[own.name]
            if own.phase is DraftPhase.OFF or not link.up:
                continue
            self._ask(session, own, link, now, outcome, nodes, asked=own.name in chosen)

    def close(self, session: Session, outcome: Outcome) -> None:
        """The session is over."""
        for own in session.drafting.links.values():
            if session.drafting.worth is not None:
                self._commands.catch_up(session, own, outcome)
            self._commands.close(session, own, outcome)

    # Proposals

    def draft(self, session: Session) -> TokenTree:
        """What of the proposals that came is verified; empty if there is nothing."""
        return self._choice.draft(session, self.share)

    def take(self, name: str, proposal: Proposal, session: Session | None, now: float) -> None:
        """A proposal came: believe it, or drop and count it."""
        own = session.drafting.links.get(name) if session is not None else None
        reason = refusal(proposal, session, own, vocab_size=self._vocab_size, max_nodes=self._max_nodes)
        if own is not None and reason in ("", "late"):
            self._observe(own, proposal, now, late=bool(reason))
        if own is not None and reason in UNUSABLE:
            own.wait_until = None  # it has answered: nothing better comes
        if reason or own is None:
            self._dropped(name, reason)
            return
        own.proposal, own.failures = proposal, 0
        own.wait_until = None

    def stale(self, name: str, event: Stale, session: Session | None, now: float, outcome: Outcome) -> None:
        """A drafter cannot draft for a session: open it again later, or never."""
        if session is None or session.record.epoch != event.epoch:
            return
        own = session.drafting.links.get(name)
        if own is None or own.phase is not DraftPhase.OPEN:
            return
        own.wait_until = None
        if event.reason in (StaleReason.TOO_LONG, StaleReason.INVALID):
            self._commands.close(session, own, outcome)
            return
        own.phase = DraftPhase.ABSENT
        own.failures += 1
        if event.reason is StaleReason.FULL or own.failures >= _FAILURES:
            own.reopen_at = now + _BACKOFF_S

    def missed(self, sessions: Iterable[Session], now: float) -> None:
        """These sessions step now although they await proposals: the patience with these ran out."""
        late: set[str] = set()
        for session in sessions:
            for own in session.drafting.waiting:
                own.missed_len = len(session.tokens)
                own.missed_asked_at = own.asked_at
                late.add(own.name)
        for name in late:
            patience = self._links[name].patience
            patience.miss(now)
            if patience.resting(now):
                self._resting(name, True)

    def _ask(
        self,
        session: Session,
        own: LinkDrafting,
        link: LinkState,
        now: float,
        outcome: Outcome,
        nodes: Sequence[int],
        *,
        asked: bool,
    ) -> None:
        """Tell one drafter what was committed, and ask it if it was chosen and can be asked."""
        most = min(session.drafting.nodes, self.share)
        depth = min(own.depth, most, session.remaining - 1, link.max_draft_tokens) if asked else 0
        patience = link.patience.wait_s(now)
        fused = session.drafting.worth is not None
        if own.phase is DraftPhase.ABSENT:
            if depth < 1 or not link.may_be_asked(own, now):
                return
            command: OpenDraft | AdvanceDraft = self._commands.open(session, own)
            depth = 0 if fused else depth  # of several, nobody waits for one that has to prefill
        else:
            if fused and not depth and len(session.tokens) - own.known < _KEEP_UP:
                return
            command = self._commands.advance(session, own)
        shipment = self._commands.rows(session, own, nodes)
        if not patience or not shipment.complete:
            depth = 0  # it rests, or lacks features: let it keep up, and expect nothing
        if depth:
            tree = link.nodes(most, depth)
            command = replace(command, draft_nodes=tree)
            own.wanted, own.nodes = depth, tree or depth
            own.asked_at, own.wait_until = now, now + patience
        command = replace(
            command,
            draft_length=depth,
            traceparent=session.spans.begin() if session.spans else "",
            patience_us=round(patience * 1e6),
        )
        self._commands.send(link.name, command, outcome, shipment)

    def _observe(self, own: LinkDrafting, proposal: Proposal, now: float, *, late: bool) -> None:
        """Learn the drafter's latency; of late proposals only from the last one missed."""
        patience = self._links[own.name].patience
        if not late:
            patience.observe(now - own.asked_at)
            if patience.hit():
                self._resting(own.name, False)
        elif proposal.base_len == own.missed_len:
            patience.observe(now - own.missed_asked_at)
