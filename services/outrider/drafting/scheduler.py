"""Decides what is drafted next. One thread calls it; it knows no gRPC.

Sessions that owe a proposal come first, all in one batch. Only when nobody waits does other work go
on (run-ahead, keeping up, proposals that are late), a step at a time, so that it is dropped as soon
as somebody does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.core.errors import OutriderError, OverloadedError, ProtocolError
from outrider.core.rounds import Proposal, StaleReason
from outrider.drafting.method import DraftingMethod, StepReport
from outrider.drafting.session import DraftRequest, DraftSession, SessionKey
from outrider.drafting.table import SessionTable
from outrider.wire.messages import AdvanceDraft, DraftCommand, DrafterLoad, OpenDraft, Stale

log = logging.getLogger(__name__)

EVICTED_REST_S = 5.0
"""How long a session that had to give way is refused. If more sessions are active than fit, each would
otherwise come back by pushing out another, and all would be in prefill for ever."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a session's stream is told."""

    stream: int
    event: Proposal | Stale
    request: DraftRequest | None = None  # what a proposal answers


@dataclass(frozen=True, slots=True)
class Happened:
    """What came of the work since it was last asked."""

    answers: Sequence[Answer] = ()
    batches: Sequence[int] = ()  # sessions drafted for in each step
    evicted: int = 0  # sessions dropped to make room


class DraftScheduler:
    """Sessions, what they owe, and the order of work."""

    def __init__(
        self,
        method: DraftingMethod,
        *,
        max_sessions: int,
        max_draft_tokens: int,
        run_ahead: int = 0,
        evicted_rest_s: float = EVICTED_REST_S,
    ) -> None:
        self._method = method
        self._max_sessions = max_sessions
        self._max_draft_tokens = max_draft_tokens
        self._run_ahead = run_ahead if method.runs_ahead else 0
        self._context = method.info.context_length
        self._table = SessionTable()
        self._owing: dict[DraftSession, None] = {}  # somebody waits for these, in order of arrival
        self._idle: dict[DraftSession, None] = {}  # nobody waits for these, but there is something to do
        self._answers: list[Answer] = []
        self._batches: list[int] = []
        self._evicted = 0
        self._evicted_rest_ns = round(evicted_rest_s * 1e9)
        self._refused_until: dict[SessionKey, int] = {}  # sessions that had to give way; perf_counter_ns
        self._forward_ns = (0, 0)  # the last forward

    @property
    def has_answers(self) -> bool:
        """Whether somebody waits for what `take` returns."""
        return bool(self._answers)

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._owing or self._idle)

    @property
    def load(self) -> DrafterLoad:
        """How busy the drafter is."""
        return DrafterLoad(len(self._table), len(self._owing), self._method.usage)

    def take(self) -> Happened:
        """Answers and counts since the last call."""
        happened = Happened(self._answers, self._batches, self._evicted)
        self._answers, self._batches, self._evicted = [], [], 0
        return happened

    def apply(self, stream: int, command: DraftCommand, arrived_ns: int) -> None:
        """Take a command in. Never raises for a bad one: its session is answered Stale."""
        key = SessionKey(stream, command.session_id)
        session = self._table.get(key)
        if session is not None and command.epoch < session.epoch:
            return
        if isinstance(command, OpenDraft):
            if session is not None:
                self._drop(session)
            self._open(key, command, arrived_ns)
        elif isinstance(command, AdvanceDraft):
            if session is None:
                self._stale(key, command.epoch, StaleReason.UNKNOWN, "the session is not held here")
            else:
                self._advance(session, command, arrived_ns)
        elif session is not None:
            self._drop(session)
            self._refused_until.clear()  # there is room again

    def reject(self, stream: int, session_id: str, epoch: int, detail: str) -> None:
        """A malformed command came in: its session cannot follow the commits any more."""
        key = SessionKey(stream, session_id)
        session = self._table.get(key)
        if session is not None and epoch >= session.epoch:
            self._drop(session)
        self._stale(key, epoch, StaleReason.INVALID, detail)

    def drop_stream(self, stream: int) -> None:
        """A stream ended: free its sessions."""
        for session in self._table.of_stream(stream):
            self._drop(session)
        self._refused_until.clear()
        self._answers = [answer for answer in self._answers if answer.stream != stream]

    def step(self) -> None:
        """Answer what is ready, then do one step of work and answer what that made ready."""
        self._put_off_late()
        self._answer_finished(list(self._owing))
        if self._owing:
            batch = list(self._owing)
            report = self._run(batch)
            if report.starved:
                self._make_room(report)
            self._answer_finished(batch)
        elif self._idle:
            batch = list(self._idle)
            starved = self._run(batch).starved
            self._answer_finished(batch)
            for session in batch:
                if session in self._idle and (session in starved or self._method.finished(session)):
                    del self._idle[session]

    # Commands

    def _open(self, key: SessionKey, command: OpenDraft, arrived_ns: int) -> None:
        session = DraftSession(
            key,
            command.epoch,
            command.sampling,
            list(command.token_ids),
            acceptance=command.acceptance,
            since=len(command.token_ids),
            prompt_len=command.prompt_len,
            tenant=command.tenant,
        )
        if not self._fits_context(session):
            return
        if arrived_ns < self._refused_until.get(key, 0):
            detail = "it had to give way to others, which still fill the memory"
            self._stale(key, command.epoch, StaleReason.FULL, detail)
            return
        if len(self._table) >= self._max_sessions and not self._drop_oldest_idle():
            self._stale(key, command.epoch, StaleReason.FULL, f"all {self._max_sessions} sessions are busy")
            return
        self._table.add(session)
        try:
            self._method.open(session, command.features)
        except (ProtocolError, OverloadedError) as error:
            self._turn_away(session, error)
            return
        self._ask(session, command, arrived_ns)

    def _advance(self, session: DraftSession, command: AdvanceDraft, arrived_ns: int) -> None:
        if command.base_len != len(session.tokens):
            held = len(session.tokens)
            self._drop(session)
            detail = f"{held} tokens are held, the command builds on {command.base_len}"
            self._stale(session.key, command.epoch, StaleReason.DIVERGED, detail)
            return
        session.epoch = command.epoch
        same = session.commit(command.token_ids)
        if not self._fits_context(session):
            self._drop(session)
            return
        self._table.touch(session)
        try:
            self._method.advance(session, same, command.features)
        except (ProtocolError, OverloadedError) as error:
            self._turn_away(session, error)
            return
        self._ask(session, command, arrived_ns)

    def _turn_away(self, session: DraftSession, error: OutriderError) -> None:
        """The method cannot take in what came with a command."""
        self._drop(session)
        reason = StaleReason.FULL if isinstance(error, OverloadedError) else StaleReason.INVALID
        self._stale(session.key, session.epoch, reason, str(error))

    def _ask(self, session: DraftSession, command: OpenDraft | AdvanceDraft, arrived_ns: int) -> None:
        """The session owes a new proposal (which replaces one that it may owe), or none."""
        self._owing.pop(session, None)
        self._idle.pop(session, None)
        session.request = None
        length = min(command.draft_length, self._max_draft_tokens)
        session.goal = length = self._within_context(session, length)
        session.nodes = min(max(length, command.draft_nodes), self._max_draft_tokens)
        if length == 0:
            if not self._method.finished(session):
                self._idle[session] = None
            return
        deadline_ns = arrived_ns + 1000 * command.patience_us if command.patience_us else 0
        hit = self._method.runs_ahead and self._method.finished(session)
        session.request = DraftRequest(
            len(session.tokens),
            length,
            session.nodes,
            arrived_ns,
            deadline_ns,
            command.traceparent,
            hit,
            forward_ns=_since(arrived_ns, self._forward_ns),
        )
        self._owing[session] = None

    def _fits_context(self, session: DraftSession) -> bool:
        if not self._context or len(session.tokens) <= self._context:
            return True
        detail = f"{len(session.tokens)} tokens, the draft model's context is {self._context}"
        self._stale(session.key, session.epoch, StaleReason.TOO_LONG, detail)
        return False

    def _within_context(self, session: DraftSession, length: int) -> int:
        """The last draft token is never run, so one may stand past the context."""
        if not self._context:
            return length
        return min(length, self._context + 1 - len(session.tokens))

    # Work

    def _run(self, batch: list[DraftSession]) -> StepReport:
        try:
            report = self._method.step(batch)
        except (OutriderError, RuntimeError, ValueError, IndexError) as error:
            log.exception("a step over %d sessions failed, they are dropped", len(batch))
            for session in batch:
                self._drop(session)
                detail = f"the step failed: {type(error).__name__}"
                self._stale(session.key, session.epoch, StaleReason.UNKNOWN, detail)
            return StepReport(0)
        self._forward_ns = report.forward_ns
        for session in self._owing:
            if session.request is not None:  # those outside of the batch wait for it too
                session.request.forward_ns += _since(session.request.arrived_ns, report.forward_ns)
        if report.progressed:
            self._batches.append(report.progressed)
        return report

    def _answer_finished(self, sessions: Iterable[DraftSession]) -> None:
        now_ns = time.perf_counter_ns()
        for session in sessions:
            request = session.request
            if request is None or not self._method.finished(session):
                continue
            tree = self._method.proposal(session, request.length, request.nodes)
            session.sent = len(tree)
            proposal = Proposal(
                session.key.session_id,
                session.epoch,
                request.base_len,
                tree,
                request.run_ahead_hit,
                max(0, now_ns - request.arrived_ns) // 1000,
                request.forward_ns // 1000,
            )
            self._answers.append(Answer(session.key.stream, proposal, request))
            self._go_on_alone(session, request)

    def _put_off_late(self) -> None:
        """Nobody waits for a late proposal, yet it is sent: verifiers learn from it how slow drafts are."""
        now_ns = time.perf_counter_ns()
        for session in list(self._owing):
            request = session.request
            late = request is not None and 0 < request.deadline_ns < now_ns
            if late and not self._method.finished(session):
                del self._owing[session]
                self._idle[session] = None

    def _go_on_alone(self, session: DraftSession, request: DraftRequest) -> None:
        """Nobody waits for this session now: run ahead, as far as allowed."""
        session.request = None
        self._owing.pop(session, None)
        session.goal = self._within_context(session, request.length + self._run_ahead)
        if not self._method.finished(session):
            self._idle[session] = None

    def _make_room(self, report: StepReport) -> None:
        """Memory is full: drop the session that was used least recently and owes nothing.

        If all owe, those that found no room wait for the others; if none gets on, the last comer gives up.
        """
        if self._drop_oldest_idle() or report.progressed:
            return
        session = report.starved[-1]
        alone = len(self._table) == 1
        self._drop(session)
        reason = StaleReason.TOO_LONG if alone else StaleReason.FULL
        detail = f"{len(session.tokens)} tokens do not fit the memory" + ("" if alone else " beside others")
        self._stale(session.key, session.epoch, reason, detail)

    def _drop_oldest_idle(self) -> bool:
        session = self._table.oldest(lambda session: session not in self._owing)
        if session is None:
            return False
        self._drop(session)
        self._evicted += 1
        now_ns = time.perf_counter_ns()
        self._refused_until = {key: until for key, until in self._refused_until.items() if until > now_ns}
        self._refused_until[session.key] = now_ns + self._evicted_rest_ns
        return True

    def _drop(self, session: DraftSession) -> None:
        session.request = None
        self._table.remove(session)
        self._owing.pop(session, None)
        self._idle.pop(session, None)
        self._method.close(session)

    def _stale(self, key: SessionKey, epoch: int, reason: StaleReason, detail: str) -> None:
        self._answers.append(Answer(key.stream, Stale(key.session_id, epoch, reason, detail)))


def _since(arrived_ns: int, forward_ns: tuple[int, int]) -> int:
    """How much of a forward was after `arrived_ns`."""
    start, end = forward_ns
    return max(0, end - max(start, arrived_ns))
