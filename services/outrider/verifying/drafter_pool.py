"""The drafters of a verifier and their replicas, as links tell of them. Engine thread only."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from outrider.verifying.features import FeatureFeed
from outrider.verifying.link_state import ALARM_TOKENS, LinkState
from outrider.verifying.mailbox import (
    LinkDown,
    LinkDraining,
    LinkGone,
    LinkLoad,
    LinkNews,
    LinkTook,
    LinkUp,
)
from outrider.verifying.patience import Patience
from outrider.verifying.placing import place
from outrider.verifying.session import DraftPhase, LinkDrafting, Session

_SETTLE_S = 2.0
"""So long a session that left a resting replica stays on the next one even if that rests too. If all of them
are slow, moving about would only make each of them take the whole text again."""


class DrafterPool:
    """Replicas come and go; a session drafts through one of each of its drafters."""

    def __init__(
        self,
        drafters: Mapping[str, int],
        *,
        patience: Callable[[], Patience],
        feed: FeatureFeed,
        gone: Callable[[str, str], None],
        useless: Callable[[str, str, bool], None],
        rng: random.Random | None = None,
    ) -> None:
        """Args:
        drafters: names of the drafters, with the most nodes of their trees (0: chains).
        patience: makes the patience with a replica.
        feed: the features that drafters need.
        gone: told drafter and link when a replica is forgotten.
        useless: told drafter and link when so many of its drafts were refused that something must be wrong
            with it (True), and when that is over.
        rng: draws the two replicas that are compared.
        """
        self._trees = dict(drafters)
        self._patience = patience
        self._feed = feed
        self._gone = gone
        self._useless = useless
        self._rng = rng or random.Random()
        self._links: dict[str, LinkState] = {}
        self.troubles: tuple[str, ...] = ()  # useless replicas, in words for an operator; anybody may read it

    def __contains__(self, drafter: str) -> bool:
        return drafter in self._trees

    def __getitem__(self, link: str) -> LinkState:
        return self._links[link]

    def get(self, link: str) -> LinkState | None:
        """The replica behind a link."""
        return self._links.get(link)

    def holder(self, own: LinkDrafting) -> LinkState | None:
        """The replica that a session is open on."""
        return self._links.get(own.link) if own.phase is DraftPhase.OPEN else None

    def usual_s(self, drafter: str) -> float | None:
        """Usual latency of the best replica that takes sessions, in seconds; None: there is none."""
        waits = [one.usual_s for one in self._of(drafter) if one.takes_sessions]
        return min(waits, default=None)

    def wait_s(self, own: LinkDrafting, now: float) -> float | None:
        """Usual latency of the replica that a session would ask, in seconds; None: nobody can be asked.

        It is the one that it is open on, or the best one that it may be opened on.
        """
        holder = self.holder(own)
        if holder is not None and holder.may_be_asked(own, now):
            return holder.usual_s
        return min((one.usual_s for one in self._open_to(own, now)), default=None)

    def place(self, own: LinkDrafting, now: float) -> LinkState | None:
        """A replica to open a session on; None: there is none now."""
        return place(self._open_to(own, now), self._rng)

    def refuge(self, own: LinkDrafting, now: float) -> LinkState | None:
        """Where a session goes whose replica is about to stop, or rests; None: it stays where it is."""
        holder = self.holder(own)
        if holder is None or not holder.up:
            return None
        if holder.draining or (holder.patience.resting(now) and now >= own.settled_at):
            other = self.place(own, now)
            if other is not None and not holder.draining:
                own.settled_at = now + _SETTLE_S
            return other
        return None

    def hear(self, news: LinkNews, sessions: Iterable[Session]) -> None:
        """A link has something to tell; `sessions` are all that there are."""
        link = self._links.get(news.link)
        if isinstance(news, LinkUp):
            self._up(news)
        elif isinstance(news, LinkGone):
            if link is not None:
                self._down(link, sessions)
                del self._links[link.link]
                self._tell_troubles()
                self._feed.drop(link.link)
            self._gone(news.drafter, news.link)
        elif link is not None and news.generation == link.generation:
            match news:
                case LinkDown():
                    self._down(link, sessions)
                case LinkDraining():
                    link.draining = True
                case LinkTook():
                    self._feed.took(link.link, news.feature_bytes)
                case LinkLoad():
                    link.told(news.load)

    def verified(self, own: LinkDrafting, drafted: int, accepted: int) -> None:
        """So many draft tokens of a session's replica were verified, and so many of these accepted."""
        link = self._links.get(own.link)
        if link is not None and drafted:
            self._judge(link, 0 if accepted else link.in_vain + drafted)

    def _judge(self, link: LinkState, in_vain: int) -> None:
        before, link.in_vain = link.useless, in_vain
        if link.useless != before:
            self._useless(link.drafter, link.link, link.useless)
            self._tell_troubles()

    def _tell_troubles(self) -> None:
        self.troubles = tuple(
            f"drafter {link.drafter} at {link.address} drafts in vain: of its last {ALARM_TOKENS} tokens "
            "or more not one was accepted; its head or its model is not the right one for this target"
            for link in self._links.values()
            if link.useless
        )

    def _up(self, news: LinkUp) -> None:
        """A replica is there (again); sessions are opened on it as their rounds come."""
        link = self._links.get(news.link)
        if link is None:
            link = LinkState(news.link, news.drafter, self._patience(), self._trees.get(news.drafter, 0))
            self._links[news.link] = link
        if link.instance_id != news.info.instance_id:
            self._judge(link, 0)
        link.instance_id = news.info.instance_id
        link.generation = news.generation
        link.up, link.draining = True, False
        link.max_draft_tokens = news.info.max_draft_tokens
        link.max_sessions = news.info.max_sessions
        link.vocab_size = news.info.model.vocab_size
        link.others = link.queued = 0
        link.patience.reset()
        self._feed.link_up(news.link, news.drafter, news.info)

    def _down(self, link: LinkState, sessions: Iterable[Session]) -> None:
        """A replica is gone: nobody waits for it any more, and what it held has to be opened elsewhere."""
        link.up = False
        link.sessions.clear()
        for session in sessions:
            own = session.drafting.links.get(link.drafter)
            if own is not None and own.phase is DraftPhase.OPEN and own.link == link.link:
                own.phase = DraftPhase.ABSENT
                own.wait_until = None

    def _of(self, drafter: str) -> list[LinkState]:
        return [link for link in self._links.values() if link.drafter == drafter]

    def _open_to(self, own: LinkDrafting, now: float) -> list[LinkState]:
        return [
            link
            for link in self._of(own.name)
            if link.link != (own.link if own.phase is DraftPhase.OPEN else "") and link.may_be_asked(own, now)
        ]
