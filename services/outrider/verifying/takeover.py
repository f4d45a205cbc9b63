"""Sessions that are taken up again: here, or from whoever has them. Event loop only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opentelemetry import trace

from outrider.core import limits
from outrider.core.errors import InvalidRequestError, ProtocolError, SessionNotFoundError, UnavailableError
from outrider.core.params import Acceptance
from outrider.core.sessions import Commit, FinishReason, SessionRecord, SpeculationStats, Usage
from outrider.sessions.store import SessionStore
from outrider.sessions.writer import CommitWriter
from outrider.structured import GrammarCompiler
from outrider.telemetry import names
from outrider.verifying.admission import Admission
from outrider.verifying.arrivals import Arrivals
from outrider.verifying.attachment import Attachment, past_the_end, replay
from outrider.verifying.compiling import grammar_matcher
from outrider.verifying.leaving import Leaving
from outrider.verifying.mailbox import StreamItem
from outrider.verifying.ownership import Ownership
from outrider.verifying.running import Running
from outrider.verifying.streams import StreamTable
from outrider.wire.messages import ResumeSession, SessionFinished

SETTLE_S = 2.0
"""How long tokens that this verifier generated itself may take to be stored before it loads the session."""


class Takeover:
    """What `Resume` does before its stream begins."""

    def __init__(
        self,
        *,
        admission: Admission,
        arrivals: Arrivals,
        ownership: Ownership,
        running: Running,
        leaving: Leaving,
        streams: StreamTable,
        compiler: GrammarCompiler,
        store: SessionStore,
        writer: CommitWriter,
    ) -> None:
        """Args:
        admission: the bounds of sessions.
        arrivals: ids and places of sessions that come in.
        ownership: who owns a session that lives here.
        running: makes them run.
        leaving: parks a session that lives here and cannot be attached to.
        streams: sessions that live here.
        compiler: of their grammars.
        store: where sessions are kept.
        writer: of tokens that the store lacks.
        """
        self._admission = admission
        self._arrivals = arrivals
        self._ownership = ownership
        self._running = running
        self._leaving = leaving
        self._streams = streams
        self._compiler = compiler
        self._store = store
        self._writer = writer

    async def resume(self, wanted: ResumeSession, span: trace.Span) -> Attachment:
        """Attach to a session that lives here, or take it over.

        Raises:
            SessionNotFoundError: there is none, or it is another tenant's.
            InvalidRequestError: it does not bear the mark, it ends before `from_token`, or it cannot be
                generated again from where it is.
            ModelMismatchError: it is one of another model.
            ProtocolError: it went on with other tokens than the caller has.
            OverloadedError: there is no place.
            UnavailableError: nobody is admitted any more, or the store is away.
        """
        session_id = wanted.session_id
        while True:
            await self._arrivals.wait(session_id)
            if session_id not in self._streams:
                break
            attachment = await self._attach(wanted)
            if attachment is not None:
                return attachment
        with self._arrivals.holding(session_id):
            return await self._take_over(wanted, span)

    async def _attach(self, wanted: ResumeSession) -> Attachment | None:
        """None: it does not live here any more."""
        session_id = wanted.session_id
        if not await self._ownership.confirm(session_id):
            return None
        held = self._streams.snapshot(session_id)
        assert held is not None
        _check_whose(held, wanted)
        _check_known(held, wanted.known)
        if self._streams.serves(session_id, wanted.from_token, len(wanted.known)):
            return self._streams.attach(session_id, wanted.from_token)
        if not await self._leaving.park(session_id):
            raise UnavailableError(f"session {session_id} is about to leave this verifier")
        return None

    async def _take_over(self, wanted: ResumeSession, span: trace.Span) -> Attachment:
        session_id = wanted.session_id
        await self._writer.settle(session_id, SETTLE_S)
        record = await self._store.load(session_id)
        _check_whose(record, wanted)
        self._admission.check_model(record)
        self._check(record, wanted)
        if record.finish_reason is not None:
            return self._tell_again(record, record.finish_reason, wanted, span)
        self._admission.check_fits(record)
        self._arrivals.take_place(session_id, record.tenant, returns=bool(record.tokens or wanted.known))
        grammar = await grammar_matcher(self._compiler, record)
        record = await self._store.claim(session_id)
        self._writer.forget(session_id)  # of the time before: they would be refused, and it fenced
        self._ownership.moved(names.MOVE_CLAIMED)
        self._check(record, wanted)
        if record.finish_reason is not None:  # its owner ended it between load and claim
            return self._tell_again(record, record.finish_reason, wanted, span, placed=True)
        stored = len(record.tokens)
        missing = wanted.known[stored:]
        if missing:
            self._writer.put([Commit(session_id, record.epoch, stored, missing)])
            record = replace(record, tokens=record.tokens + missing)
        return self._running.run(record, span, grammar, from_token=wanted.from_token, stored=stored)

    def _check(self, record: SessionRecord, wanted: ResumeSession) -> None:
        """Refuse what cannot be told, if possible before the session is taken from its owner."""
        held, most = len(record.tokens), record.stop.max_tokens
        if record.finish_reason is not None:
            most = held
        if wanted.from_token > most:
            raise past_the_end(wanted.from_token, most)
        limits.check_generated("known", wanted.known, vocab_size=self._admission.model.vocab_size)
        _check_known(record, wanted.known)
        coupled = record.speculation.acceptance is Acceptance.COUPLED
        if not coupled and wanted.from_token > max(held, len(wanted.known)):
            raise InvalidRequestError(
                f"from_token is {wanted.from_token}, the store has {held} tokens, and by the rule "
                f"{record.speculation.acceptance.value!r} others would be generated",
                field="from_token",
            )

    def _tell_again(
        self,
        record: SessionRecord,
        reason: FinishReason,
        wanted: ResumeSession,
        span: trace.Span,
        *,
        placed: bool = False,
    ) -> Attachment:
        """The stream of a session that has ended: what the store knows, with log-probabilities if they are
        told, for which the model has to run: that needs a place, if it has not got one."""
        first, logprobs = wanted.from_token, record.logprobs
        generated = logprobs.top is not None and first < len(record.tokens)
        if generated or (logprobs.prompt_top is not None and not first):
            self._admission.check_fits(record)
            if not placed:
                self._arrivals.take_place(record.session_id, record.tenant, returns=True)
            return self._running.run(record, span, None, from_token=first)
        usage = Usage(len(record.prompt), len(record.tokens))
        finished = SessionFinished(reason, usage, SpeculationStats(), record.stop_token_id)
        items: list[StreamItem] = [*replay(record.tokens, first), finished]
        return Attachment(record, items, from_token=first, held=len(record.tokens))


def _check_whose(record: SessionRecord, wanted: ResumeSession) -> None:
    if record.tenant != wanted.tenant:  # in the words of a store that has none
        raise SessionNotFoundError(f"session {wanted.session_id} is not in the store")
    if wanted.mark not in record.presentation:
        raise InvalidRequestError("mark must be part of the session's presentation", field="mark")


def _check_known(record: SessionRecord, known: Sequence[int]) -> None:
    common = min(len(record.tokens), len(known))
    if tuple(known[:common]) != record.tokens[:common]:
        raise ProtocolError(f"session {record.session_id} went on with other tokens than the caller has")
