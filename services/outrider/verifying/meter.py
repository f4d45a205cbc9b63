"""Counts and times of rounds: into each session's own statistics, and into the metrics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.util.types import AttributeValue

from outrider.engine.api import PoolUsage
from outrider.telemetry import names
from outrider.telemetry.metrics import VerifierMetrics
from outrider.verifying.fusion.credit import Credit, credits
from outrider.verifying.rounds import Settled
from outrider.verifying.session import DraftPhase, Session
from outrider.verifying.work import StepTimes, Work

_log = logging.getLogger(__name__)

_NOTHING = Credit(0, 0)


@dataclass(frozen=True, slots=True)
class _LastStep:
    """The step before; times are `perf_counter` seconds."""

    sessions: tuple[int, ...] = ()  # their order of admission, which is unique
    forward: float = 0.0  # end of the forward
    published: float = 0.0


class Meter:
    """The engine thread's counts. A step's time is split into the parts of `names.ROUND_PARTS`:

    - draft_wait: from handing the last step's outcome over to the start of this one, if drafts were
      asked for
    - draft: what of it the drafter itself says to have spent
    - draft_forward: what of that its model's forwards took
    - forward: the engine
    - editing: grammar masks, penalties and the other edits of logits
    - sampling: picks and walks, log-probabilities
    - commit: keeping KV, releasing it; while drafts are waited for, if they are
    - other: planning, reserving room, handing the outcome over

    A round that follows on one of the same sessions also has an overhead: from the end of the one
    forward to the start of the next one, less draft_forward.
    """

    def __init__(self, metrics: VerifierMetrics) -> None:
        self._metrics = metrics
        self._last = _LastStep()

    def load(self, running: int, waiting: int, pool: PoolUsage) -> None:
        """How many sessions there are, and how full the pool is."""
        self._metrics.load(running=running, waiting=waiting, kv_usage=pool.ratio)

    def started(self, session: Session, now: float) -> None:
        """A session runs for the first time."""
        self._metrics.admitted(
            waited_s=now - session.admitted_at,
            prompt_tokens=len(session.record.prompt),
            cached_tokens=session.cached_prompt_tokens,
        )

    def preempted(self) -> None:
        """A session gave way."""
        self._metrics.preempted()

    def dropped(self, drafter: str, reason: str) -> None:
        """A proposal was dropped."""
        self._metrics.dropped(drafter, reason)

    def features_sent(self, drafter: str, size: int) -> None:
        """So many bytes of hidden states go to this drafter."""
        self._metrics.features_sent(drafter, size)

    def missed(self, session: Session, drafters: Sequence[str]) -> None:
        """A round goes on without proposals that it waited for."""
        session.stats.missed += 1
        for drafter in drafters:
            self._metrics.missed(drafter)
        for own in session.stats.drafters:
            own.missed += own.name in drafters

    def resting(self, drafter: str, link: str, rests: bool) -> None:
        """Nobody waits for this replica for a while, or it is waited for again."""
        self._metrics.link_state(drafter, link, "resting" if rests else "ready")

    def useless(self, drafter: str, link: str, useless: bool) -> None:
        """A replica's drafts are all refused, or are not any more."""
        text = "drafts in vain" if useless else "drafts in vain no more"
        _log.log(logging.ERROR if useless else logging.INFO, "drafter replica %s %s", link, text)
        self._metrics.useless(drafter, link, useless)

    def link_gone(self, drafter: str, link: str) -> None:
        """There is no such replica any more."""
        self._metrics.link_gone(drafter, link)

    def round(self, work: Work) -> None:
        """A session's round is settled."""
        session, settled = work.session, work.settled
        if settled is None:
            return
        self._by_drafter(work, settled)
        stats, drafted = session.stats, len(work.tree)
        ahead = next((name for name, one in work.proposals.items() if drafted and one.run_ahead_hit), "")
        stats.rounds += 1
        stats.drafts += bool(drafted)
        stats.draft_tokens += drafted
        stats.run_ahead_hits += bool(ahead)
        marks = bytearray(len(settled.token_ids))
        marks[: settled.accepted] = b"\x01" * settled.accepted
        session.drafted_marks += marks
        self._metrics.round(
            drafted=drafted,
            accepted=settled.accepted,
            drafter=ahead,
            run_ahead_hit=bool(ahead),
        )

    def _by_drafter(self, work: Work, settled: Settled) -> None:
        session = work.session
        trees = {name: one.tree for name, one in work.proposals.items()}
        work.credits = credits(trees, work.tree, settled.nodes) if trees else {}
        sides = session.drafting.links.values()
        for own, stats, marks in zip(sides, session.stats.drafters, session.drafter_marks, strict=True):
            credit, asked = work.credits.get(own.name, _NOTHING), own.name in work.asked
            stats.asked += asked
            stats.proposals += own.name in trees
            stats.draft_tokens += credit.drafted
            marks += b"\x01" * credit.accepted + bytes(len(settled.token_ids) - credit.accepted)
            # Nobody is asked for the first round, which comes with the prompt.
            if asked or (session.stats.rounds and own.phase is not DraftPhase.OFF):
                self._metrics.drafter_round(
                    own.name, asked=asked, drafted=credit.drafted, accepted=credit.accepted
                )

    def step(
        self, works: Sequence[Work], began: float, times: StepTimes, published: float, over: float
    ) -> None:
        """A step is over; all times are `perf_counter` seconds."""
        last, sessions = self._last, tuple(work.session.order for work in works)
        self._last = _LastStep(sessions, times.forward, published)
        waited = min(max(work.waited_s for work in works), began - last.published)
        if waited > 0:
            slowest = max(
                ((p.draft_us / 1e6, p.forward_us / 1e6) for work in works for p in work.proposals.values()),
                default=(0.0, 0.0),
            )
            drafted = min(slowest[0], waited)
            in_forward = min(slowest[1], drafted)
            self._metrics.step_time("draft_wait", waited)
            self._metrics.step_time("draft", drafted)
            self._metrics.step_time("draft_forward", in_forward)
            if last.sessions == sessions and all(work.proposals for work in works):
                self._metrics.round_overhead(times.start - last.forward - in_forward)
        self._metrics.step_time("forward", times.forward - times.start)
        self._metrics.step_time("editing", times.editing_s)
        self._metrics.step_time("sampling", times.sample - times.forward - times.editing_s)
        self._metrics.step_time("commit", over - published)
        self._metrics.step_time("other", times.start - began + published - times.sample)


def round_attributes(work: Work) -> dict[str, AttributeValue]:
    """What a round's span tells."""
    settled = work.settled
    assert settled is not None
    return {
        names.ATTR_EPOCH: work.session.record.epoch,
        names.ATTR_DRAFTER: work.session.stats.drafter,
        names.ATTR_DRAFTERS: list(work.asked),
        names.ATTR_DRAFTERS_PROPOSED: [
            len(work.proposals[name].tree) if name in work.proposals else -1 for name in work.asked
        ],
        names.ATTR_DRAFTERS_DRAFTED: [work.credits.get(name, _NOTHING).drafted for name in work.asked],
        names.ATTR_DRAFTERS_ACCEPTED: [work.credits.get(name, _NOTHING).accepted for name in work.asked],
        names.ATTR_BASE_LEN: work.base_len,
        names.ATTR_TREE_SIZE: sum(len(one.tree) for one in work.proposals.values()),
        names.ATTR_DRAFTED: len(work.tree),
        names.ATTR_ACCEPTED: settled.accepted,
        names.ATTR_RUN_AHEAD_HIT: any(one.run_ahead_hit for one in work.proposals.values()),
        names.ATTR_WAIT_US: round(work.waited_s * 1e6),
        names.ATTR_MISSED: bool(work.missed),
    }
