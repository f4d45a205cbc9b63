"""Which of a session's drafters are asked, and what rounds teach about them. Engine thread only."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.core.params import Acceptance
from outrider.core.trees import TokenTree
from outrider.verifying.drafter_pool import DrafterPool
from outrider.verifying.fusion.council import Council
from outrider.verifying.mailbox import Admit
from outrider.verifying.rounds import Settled, clip
from outrider.verifying.session import Drafting, DraftPhase, LinkDrafting, Session

_EMPTY = TokenTree()


class Choice:
    """The council's advice, for the replicas as they are."""

    def __init__(self, pool: DrafterPool, council: Council, *, max_nodes: int) -> None:
        """Args:
        pool: all drafters of this verifier.
        council: what is learned of drafters, for sessions with several of them.
        max_nodes: most nodes in a proposal.
        """
        self._pool = pool
        self._council = council
        self._max_nodes = max_nodes

    def begin(self, item: Admit) -> Drafting:
        """A session's side of drafting, before anything is sent.

        By the rules "token" and "block" it has one drafter: which one is asked must not depend on
        tokens that were drawn.
        """
        drafters = {name: depth for name, depth in item.drafters if name in self._pool}
        if len(drafters) > 1 and item.record.speculation.acceptance is not Acceptance.COUPLED:
            usual = {name: self._pool.usual_s(name) for name in drafters}
            waits = {name: wait for name, wait in usual.items() if wait is not None}
            best = self._council.best(waits) or next(iter(drafters))
            drafters = {best: drafters[best]}
        return Drafting(
            {name: LinkDrafting(name, depth) for name, depth in drafters.items()},
            nodes=min(item.draft_nodes, self._max_nodes),
            worth=self._council.begin() if len(drafters) > 1 else None,
        )

    def chosen(self, drafting: Drafting, now: float) -> list[LinkDrafting]:
        """The drafters that are worth asking now; of one alone it is not the question."""
        if drafting.worth is None:
            return list(drafting.links.values())
        waits = self._reachable(drafting, now)
        names = self._council.choose(drafting.worth, waits) if waits else frozenset()
        return [own for own in drafting.links.values() if own.name in names]

    def learn(self, drafting: Drafting, settled: Settled, now: float) -> None:
        """A round is settled; what was asked and what came for it is still there."""
        # A link that was lost tells nothing of its drafter, and all sessions there would learn it at once.
        asked = {
            name: own.proposal
            for name, own in drafting.links.items()
            if own.wanted and (own.proposal is not None or self._pool.holder(own) is not None)
        }
        sample = self._council.learn(
            drafting.worth,
            asked,
            settled.token_ids,
            everybody=drafting.worth is not None and self._reachable(drafting, now).keys() <= asked.keys(),
        )
        for name in asked:
            drafting.links[name].credited = min(sample.get(name, 0), settled.accepted)

    def draft(self, session: Session, share: int) -> TokenTree:
        """What of the proposals that came is verified; of several at most `share` nodes."""
        drafting = session.drafting
        proposals = drafting.proposals
        if not proposals:
            return _EMPTY
        depth = min(session.remaining - 1, max(drafting.links[name].wanted for name in proposals))
        if len(proposals) > 1:
            return self._council.draft(proposals, nodes=min(drafting.nodes, share), depth=depth)
        ((name, proposal),) = proposals.items()
        return clip(proposal.tree, nodes=drafting.links[name].nodes, depth=depth)

    def stepped(self, seconds: float) -> None:
        """A step of the target without prompts took so long."""
        self._council.stepped(seconds)

    def _reachable(self, drafting: Drafting, now: float) -> Mapping[str, float]:
        """Usual latency of each drafter that could be asked, in seconds."""
        waits = {
            own.name: self._pool.wait_s(own, now)
            for own in drafting.links.values()
            if own.phase is not DraftPhase.OFF
        }
        return {name: wait for name, wait in waits.items() if wait is not None}
