"""New sessions, and such that the store has lost. Event loop only."""

from __future__ import annotations

import secrets
from dataclasses import replace

from opentelemetry import trace

from outrider.core import limits
from outrider.core.errors import InvalidRequestError, StaleEpochError, StoreUnavailableError
from outrider.core.sessions import SessionRecord
from outrider.sessions.store import SessionStore
from outrider.sessions.writer import CommitWriter
from outrider.structured import GrammarCompiler
from outrider.telemetry import names
from outrider.verifying.admission import Admission
from outrider.verifying.arrivals import Arrivals
from outrider.verifying.attachment import Attachment
from outrider.verifying.compiling import grammar_matcher
from outrider.verifying.ownership import Ownership
from outrider.verifying.running import Running
from outrider.wire import convert
from outrider.wire.messages import SessionRequest
from outrider.wire.v1 import verifier_pb2 as pb


class Opening:
    """What `Generate` does before its stream begins."""

    def __init__(
        self,
        *,
        admission: Admission,
        arrivals: Arrivals,
        ownership: Ownership,
        running: Running,
        compiler: GrammarCompiler,
        store: SessionStore,
        writer: CommitWriter,
        refuse_when_away: bool,
    ) -> None:
        """Args:
        admission: the bounds of requests.
        arrivals: ids and places of sessions that come in.
        ownership: who owns a session that lives here.
        running: makes them run.
        compiler: of their grammars.
        store: where sessions are kept.
        writer: takes them while the store is away ...
        refuse_when_away: ... unless they are to be refused then.
        """
        self._admission = admission
        self._arrivals = arrivals
        self._ownership = ownership
        self._running = running
        self._compiler = compiler
        self._store = store
        self._writer = writer
        self._refuse_when_away = refuse_when_away

    async def open(self, request: pb.VerifierGenerateRequest, span: trace.Span) -> Attachment:
        """Start a session, or go on with one behind the tokens that its client has.

        Raises:
            InvalidRequestError: which field, what was wrong, what is allowed.
            SessionExistsError: the id is in use.
            StaleEpochError: somebody else has the session, with this epoch or a higher one.
            ProtocolError: the store knows it better: it is finished, or went on otherwise.
            OverloadedError: there is no place.
            UnavailableError: nobody is admitted any more; or the store is away, and admits nobody then.
        """
        wanted = convert.session_request_from_proto(request, draw_seed=lambda: secrets.randbits(64))
        span.set_attribute(names.ATTR_SESSION, wanted.session_id)
        record = self._admission.record(wanted)
        restored = wanted.epoch > 1 or bool(wanted.generated)
        if restored:
            record = self._with_tokens(record, wanted)
            await self._arrivals.wait(record.session_id)
            await self._ownership.give_up_older(record.session_id, record.epoch, record.tenant)
        with self._arrivals.holding(record.session_id):
            self._arrivals.take_place(record.session_id, record.tenant, returns=bool(record.tokens))
            grammar = await grammar_matcher(self._compiler, record)
            if not restored:
                await self._create(record)
                return self._running.run(record, span, grammar)
            record, stored = await self._restore(record)
            self._ownership.moved(names.MOVE_RESTORED)
            return self._running.run(record, span, grammar, from_token=len(wanted.generated), stored=stored)

    def _with_tokens(self, record: SessionRecord, wanted: SessionRequest) -> SessionRecord:
        if not wanted.stop.max_tokens:  # another verifier has, or had, room for another number
            raise InvalidRequestError("a session that is restored needs its max_tokens", field="max_tokens")
        most = record.stop.max_tokens
        if len(wanted.generated) > most:
            raise InvalidRequestError(
                f"generated must hold at most max_tokens ({most}) tokens, got {len(wanted.generated)}",
                field="generated",
            )
        limits.check_generated("generated", wanted.generated, vocab_size=self._admission.model.vocab_size)
        return replace(record, epoch=wanted.epoch, tokens=wanted.generated)

    async def _create(self, record: SessionRecord) -> None:
        try:
            await self._store.create(record)
        except StoreUnavailableError:
            if self._refuse_when_away:
                raise
            self._writer.create(record)

    async def _restore(self, record: SessionRecord) -> tuple[SessionRecord, int]:
        """The session as the store has it now, and how many of its tokens are stored."""
        self._writer.forget(record.session_id)  # of the time before: they would be refused, and it fenced
        try:
            await self._store.restore(record)
        except StoreUnavailableError:
            if self._refuse_when_away:
                raise
            self._writer.restore(record)
            return record, 0
        try:
            held = await self._store.load(record.session_id)  # it may have had more tokens
        except StoreUnavailableError:
            return record, len(record.tokens)
        if held.epoch != record.epoch:
            raise StaleEpochError(f"session {record.session_id} was taken over while it was restored")
        return held, len(held.tokens)
