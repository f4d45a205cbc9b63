"""The engine thread's side of drafting: which drafters know what of a session, and what they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from outrider.core.rounds import Proposal, StaleReason
from outrider.core.trees import TokenTree
from outrider.verifying.choice import Choice
from outrider.verifying.commands import Commands
from outrider.verifying.drafter_pool import DrafterPool
from outrider.verifying.features import FeatureFeed
from outrider.verifying.fusion.council import Council
from outrider.verifying.fusion.credit import Credit
from outrider.verifying.link_state import LinkState
from outrider.verifying.mailbox import Admit, LinkNews, Outcome
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
        pool: DrafterPool,
        *,
        vocab_size: int,
        max_nodes: int,
        feed: FeatureFeed,
        council: Council,
        dropped: Callable[[str, str], None],
        resting: Callable[[str, str, bool], None],
    ) -> None:
        """Args:
        pool: all drafters of this verifier.
        vocab_size: rows of the target's output head.
        max_nodes: most nodes in a proposal.
        feed: the features that drafters need.
        council: what is learned of drafters, for sessions with several of them.
        dropped: told drafter and reason of each proposal that is dropped.
        resting: told drafter and link when a replica begins (True) and ends to rest.
        """
        self._pool = pool
        self._vocab_size = vocab_size
        self._max_nodes = max_nodes
        self._choice = Choice(pool, council, max_nodes=max_nodes)
        self._commands = Commands(pool, feed, vocab_size=vocab_size)
        self._dropped = dropped
        self._resting = resting
        self.share = max_nodes  # most draft tokens of a session, as the load has it

    def hear(self, news: LinkNews, sessions: Iterable[Session]) -> None:
        """A link has something to tell; `sessions` are all that there are."""
        self._pool.hear(news, sessions)

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong with drafters that are there, in words for an operator; anybody may ask."""
        return self._pool.troubles

    def verified(self, session: Session, credits: Mapping[str, Credit]) -> None:
        """A round is settled; `credits` by drafter: what of it each had proposed."""
        for name, credit in credits.items():
            self._pool.verified(session.drafting.links[name], credit.drafted, credit.accepted)

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
            if own.phase is DraftPhase.ABSENT and (link := self._pool.place(own, now)) is not None:
                self._commands.send(own, self._commands.open(session, own, link), outcome)

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
            asked = own.name in chosen and self.share > 0
            link = self._settled(session, own, now, outcome, asked=asked)
            if link is not None:
                self._ask(session, own, link, now, outcome, nodes, asked=asked)

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

    def take(self, link: str, proposal: Proposal, session: Session | None, now: float) -> None:
        """A proposal came: believe it, or drop and count it."""
        holder = self._pool.get(link)
        if holder is None:
            return  # forgotten, and what it said last with it
        own = _side(session, holder)
        reason = refusal(proposal, session, own, vocab_size=self._vocab_size, max_nodes=self._max_nodes)
        if own is not None and reason in ("", "late"):
            self._observe(own, holder, proposal, now, late=bool(reason))
        if own is not None and reason in UNUSABLE:
            own.wait_until = None  # it has answered: nothing better comes
        if reason or own is None:
            self._dropped(holder.drafter, reason)
            return
        own.proposal, own.failures = proposal, 0
        own.wait_until = None

    def stale(self, link: str, event: Stale, session: Session | None, now: float, outcome: Outcome) -> None:
        """A drafter cannot draft for a session: open it elsewhere, or there again later, or never."""
        holder = self._pool.get(link)
        if holder is None or session is None or session.record.epoch != event.epoch:
            return
        own = _side(session, holder)
        if own is None or own.phase is not DraftPhase.OPEN:
            return
        own.wait_until = None
        if event.reason in (StaleReason.TOO_LONG, StaleReason.INVALID):
            self._commands.close(session, own, outcome)
            return
        self._commands.lost(session, own, holder)
        own.failures += 1
        if event.reason is StaleReason.FULL or own.failures >= _FAILURES:
            own.refused[link] = now + _BACKOFF_S

    def missed(self, sessions: Iterable[Session], now: float) -> None:
        """These sessions step now although they await proposals: the patience with these ran out."""
        late: dict[str, LinkState] = {}
        for session in sessions:
            for own in session.drafting.waiting:
                own.missed_len = len(session.tokens)
                own.missed_asked_at = own.asked_at
                if (holder := self._pool.holder(own)) is not None:
                    late[holder.link] = holder
        for link in late.values():
            link.patience.miss(now)
            if link.patience.resting(now):
                self._resting(link.drafter, link.link, True)

    def _settled(
        self, session: Session, own: LinkDrafting, now: float, outcome: Outcome, *, asked: bool
    ) -> LinkState | None:
        """The replica to talk to about a session: that which holds it, or another if it has to move."""
        if own.phase is DraftPhase.OFF:
            return None
        if not asked:
            return self._pool.holder(own)
        if own.phase is DraftPhase.ABSENT:
            return self._pool.place(own, now)
        refuge = self._pool.refuge(own, now)
        if refuge is None:
            return self._pool.holder(own)
        self._commands.leave(session, own, outcome)
        return refuge

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
            if depth < 1:
                return
            command: OpenDraft | AdvanceDraft = self._commands.open(session, own, link)
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
        self._commands.send(own, command, outcome, shipment)

    def _observe(
        self, own: LinkDrafting, holder: LinkState, proposal: Proposal, now: float, *, late: bool
    ) -> None:
        """Learn the replica's latency; of late proposals only from the last one missed."""
        if not late:
            holder.patience.observe(now - own.asked_at)
            if holder.patience.hit():
                self._resting(holder.drafter, holder.link, False)
        elif proposal.base_len == own.missed_len:
            holder.patience.observe(now - own.missed_asked_at)


def _side(session: Session | None, holder: LinkState) -> LinkDrafting | None:
    """A session's side of the drafter that a replica is one of; None: it does not draft there."""
    own = session.drafting.links.get(holder.drafter) if session is not None else None
    return own if own is not None and own.link == holder.link else None
