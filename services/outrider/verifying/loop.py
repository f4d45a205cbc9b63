"""The engine thread: drain the inbox, plan, step, settle, publish, commit. It only composes."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic, perf_counter

from outrider.config.schema import VerifierConfig
from outrider.core.errors import InvalidRequestError, OutriderError, UnavailableError
from outrider.core.rounds import Proposal
from outrider.core.sessions import Commit, FinishReason
from outrider.engine.api import EngineApi
from outrider.verifying import mailbox, steps
from outrider.verifying.drafts import DraftDesk
from outrider.verifying.meter import Meter, round_attributes
from outrider.verifying.roster import Roster
from outrider.verifying.rounds import Settled
from outrider.verifying.scheduler import Candidate, Plan, plan_step
from outrider.verifying.session import Session
from outrider.verifying.spans import RoundTimes
from outrider.verifying.step_rows import draft_share
from outrider.verifying.work import StepTimes, Work
from outrider.wire.messages import SessionFinished, SessionTokens, VerifierLoad

_log = logging.getLogger(__name__)


class RoundLoop:
    """Runs all sessions of one verifier. `run` is the engine thread's; `post` is anybody's."""

    def __init__(
        self,
        engine: EngineApi,
        config: VerifierConfig,
        desk: DraftDesk,
        meter: Meter,
        publish: Callable[[mailbox.Outcome], None],
    ) -> None:
        """Args:
        engine: owned by the thread that runs `run`.
        config: limits of sessions, prefill and drafts.
        desk: the drafting side.
        meter: counts and times.
        publish: given each step's outcome, in the engine thread; must not block.
        """
        self._engine = engine
        self._config = config
        self._desk = desk
        self._meter = meter
        self._publish = publish
        self._inbox: queue.SimpleQueue[mailbox.Inward] = queue.SimpleQueue()
        self._roster = Roster(
            engine, max_sessions=config.max_sessions, block_size=config.block_size, preempted=meter.preempted
        )
        self._outcome = mailbox.Outcome()
        self._admitted = 0
        self._load = VerifierLoad(max_running=config.max_sessions, max_waiting=config.max_queue)

    def post(self, item: mailbox.Inward) -> None:
        """Hand something to the engine thread. Never blocks."""
        self._inbox.put(item)

    @property
    def load(self) -> VerifierLoad:
        """How busy it is; anybody may ask."""
        return self._load

    def run(self) -> None:
        """Serve until `Shutdown`. An exception that leaves it is a defect."""
        wait_s: float | None = None
        while self._drain(wait_s):
            wait_s = self._advance()

    def _drain(self, wait_s: float | None) -> bool:
        """Take in all that is in the inbox, waiting for the first item. False: shut down."""
        try:
            item = self._inbox.get(timeout=wait_s) if wait_s != 0 else self._inbox.get_nowait()
            while True:
                if isinstance(item, mailbox.Shutdown):
                    self._shut_down()
                    return False
                self._take(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            self._flush()
            return True

    def _take(self, item: mailbox.Inward) -> None:
        match item:
            case mailbox.Drafted():
                self._drafted(item)
            case mailbox.Admit():
                self._admit(item)
            case mailbox.End():
                self._end(item)
            case mailbox.Leave():
                self._let_go(item)
            case mailbox.Shutdown():
                raise AssertionError("it ends the inbox")
            case _:
                self._desk.hear(item, self._roster)

    def _drafted(self, item: mailbox.Drafted) -> None:
        session = self._roster.get(item.event.session_id)
        if isinstance(item.event, Proposal):
            self._desk.take(item.link, item.event, session, monotonic())
        else:
            self._desk.stale(item.link, item.event, session, monotonic(), self._outcome)

    def _admit(self, item: mailbox.Admit) -> None:
        self._admitted += 1
        drafting = self._desk.begin(item)
        session = Session.admitted(item.record, self._admitted, drafting, item.from_token)
        session.spans = item.spans
        session.grammar = item.grammar
        session.admitted_at = monotonic()
        self._roster.add(session)
        if session.ending is not None and not session.untold:
            self._end_of_known(session, session.ending)

    def _end(self, item: mailbox.End) -> None:
        session = self._roster.get(item.session_id)
        if session is None or (item.unless_started and session.started):
            return
        keep = session.generated if item.keep_tokens is None else min(item.keep_tokens, session.generated)
        if item.error is None:
            cut = mailbox.Truncation(session.session_id, session.record.epoch, keep, item.reason)
            self._outcome.truncations.append(cut)
            self._finish(session, item.reason, delivered=keep)
        else:
            self._fail(session, item.error)

    def _end_of_known(self, session: Session, reason: FinishReason) -> None:
        """A session that came with all its tokens is over: they were told, if they had to be."""
        if session.record.finish_reason is None:  # it had only its end left to write
            self._outcome.commits.append(
                Commit(session.session_id, session.record.epoch, session.generated, (), reason)
            )
        self._finish(session, reason, stop_token_id=session.record.stop_token_id)

    def _let_go(self, item: mailbox.Leave) -> None:
        wanted = list(self._roster) if item.session_id is None else [self._roster.get(item.session_id)]
        for session in wanted:
            if session is not None and not (item.waiting and session.sequence is not None):
                self._leave(session)
                self._outcome.left.append(session.session_id)

    def _advance(self) -> float | None:
        """Take the next step, if it is time; returns how long to wait before the next look."""
        self._start_waiting()
        running = self._roster.running
        candidates = [Candidate(session.missing, session.drafting.wait_until) for session in running]
        now = monotonic()
        plan = plan_step(candidates, now, self._config.prefill_chunk)
        if plan.shares:
            self._step(plan, now)
            return 0.0
        self._flush()
        return None if plan.wait_until is None else max(0.0, plan.wait_until - now)

    def _start_waiting(self) -> None:
        try:
            for session in self._roster.start_waiting():
                if not session.started:
                    session.started = True
                    self._outcome.started.append(session.session_id)
                    now = monotonic()
                    self._meter.started(session, now)
                    self._desk.admit(session, now, self._outcome)
        except OutriderError as error:
            refused = self._roster.waiting.first
            assert refused is not None
            self._fail(refused, error)
        self._tell_load()
        self._flush()

    def _tell_load(self) -> None:
        running, waiting, pool = len(self._roster.running), len(self._roster.waiting), self._engine.pool
        self._meter.load(running, waiting, pool)
        self._load = replace(self._load, running=running, waiting=waiting, kv_usage=pool.ratio)

    def _step(self, plan: Plan, now: float) -> None:
        began = perf_counter()
        self._desk.share = draft_share(self._config.step_rows, len(self._roster.running))
        works = self._build(plan, now)
        if not works:
            return
        times = steps.run(self._engine, works)
        for work in works:
            if work.failure is not None:
                self._failed(work, work.failure)
                continue
            self._tell_of_known(work)
            if work.settled is not None:
                self._settle(work, work.settled, times)
        self._flush()
        published = perf_counter()
        self._commit(works, times)
        self._meter.step(works, began, times, published, perf_counter())
        if all(work.is_decoding for work in works):
            self._desk.stepped(times.forward - times.start)

    def _build(self, plan: Plan, now: float) -> list[Work]:
        """The step's parts, with room reserved; those that had to give way are left out."""
        sessions = list(self._roster.running)
        works, missed = [], []
        for share in plan.shares:
            session = sessions[share.index]
            if session.sequence is None:
                continue
            tree = self._desk.draft(session)
            room = self._roster.make_room(session, share.tokens, len(tree))
            if room is None:
                continue
            work = steps.build(session, share, tree.truncated(room), now)
            if work.missed:
                self._meter.missed(session, work.missed)
                missed.append(session)
            works.append(work)
        self._desk.missed(missed, now)
        return works

    def _tell_of_known(self, work: Work) -> None:
        session = work.session
        if (prompt := work.prompt_logprobs) is not None:
            session.prompt_told = prompt.first_position + len(prompt.entries)
            self._outcome.items.append((session.session_id, prompt))
        if (again := work.told_again) is not None:
            session.stored_told += len(again.token_ids)
            self._outcome.items.append((session.session_id, again))

    def _settle(self, work: Work, settled: Settled, times: StepTimes) -> None:
        """Deliver what a round brought, and ask for the next proposal unless the session ends."""
        session, first = work.session, work.session.generated
        session.tokens.extend(settled.token_ids)
        self._meter.round(work)
        self._desk.verified(session, work.credits)
        if settled.token_ids:
            tokens = SessionTokens(first, settled.token_ids, settled.accepted, work.logprobs)
            self._outcome.items.append((session.session_id, tokens))
        self._outcome.commits.append(
            Commit(
                session.session_id,
                session.record.epoch,
                first,
                settled.token_ids,
                settled.finish_reason,
                settled.stop_token_id,
            )
        )
        if session.spans is not None:
            work.span = session.spans.take(times.start)
        if settled.finish_reason is None:
            self._desk.ask(session, settled, monotonic(), self._outcome, work.kept_nodes)

    def _failed(self, work: Work, error: OutriderError) -> None:
        """The step brought nothing for this session; nobody else is touched."""
        session = work.session
        if work.tree:  # its drafts may be at fault: take the round again without them
            session.drafting.forget_round()
            return
        if not isinstance(error, InvalidRequestError):
            _log.error("session %s ends by a defect: %s", session.session_id, error)
        self._fail(session, error)

    def _commit(self, works: Sequence[Work], times: StepTimes) -> None:
        """Keep the KV of what was accepted; sessions that are over give theirs back.

        After publishing: drafters work meanwhile.
        """
        for work in works:
            session, settled = work.session, work.settled
            if session.sequence is None:  # it failed
                continue
            self._engine.commit(session.sequence, work.kept_nodes)
            if not work.last:
                self._desk.carry(session, self._outcome)
            if session.spans is not None and work.span is not None:
                bounds = RoundTimes(times.start, times.sample, perf_counter())
                session.spans.finish(work.span, bounds, round_attributes(work))
            if session.ending is not None and settled is None and not session.missing:
                self._end_of_known(session, session.ending)
            if settled is not None and settled.finish_reason is not None:
                self._finish(session, settled.finish_reason, stop_token_id=settled.stop_token_id)
        self._flush()

    def _finish(
        self,
        session: Session,
        reason: FinishReason,
        *,
        delivered: int | None = None,
        stop_token_id: int | None = None,
    ) -> None:
        kept = session.generated if delivered is None else delivered
        finished = SessionFinished(reason, session.usage(kept), session.stats_of(kept), stop_token_id)
        self._leave(session)
        self._outcome.items.append((session.session_id, finished))

    def _fail(self, session: Session, error: OutriderError) -> None:
        self._leave(session)
        self._outcome.items.append((session.session_id, error))

    def _leave(self, session: Session) -> None:
        self._desk.close(session, self._outcome)
        self._roster.remove(session)

    def _shut_down(self) -> None:
        for session in self._roster:
            self._fail(session, UnavailableError("the verifier is stopping"))
        self._flush()

    def _flush(self) -> None:
        if self._outcome:
            self._publish(self._outcome)
            self._outcome = mailbox.Outcome()
