"""A verifier without a model: real gRPC, tokens from a script in any grouping."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from outrider.core.errors import (
    InvalidRequestError,
    OutriderError,
    SessionExistsError,
    SessionNotFoundError,
    SessionParkedError,
    StaleEpochError,
    SupersededError,
)
from outrider.core.models import ModelInfo
from outrider.core.params import TokenLogprobs
from outrider.core.sessions import DrafterStats, FinishReason, SpeculationStats, Usage
from outrider.wire import channels, convert
from outrider.wire.errors import abort
from outrider.wire.messages import (
    CancelSession,
    PromptLogprobs,
    ResumeSession,
    SessionFinished,
    SessionRequest,
    SessionStarted,
    SessionTokens,
    VerifierInfo,
)
from outrider.wire.services import VERIFIER, VerifierService, add_verifier
from outrider.wire.v1 import verifier_pb2 as pb

Round = tuple[Sequence[int], int]  # token ids, how many of them were draft tokens
DRAFTED_PER_ROUND = 4


@dataclass
class Stored:
    """What the store has of a session: any verifier that shares it can go on with it."""

    request: SessionRequest
    epoch: int


@dataclass
class Break:
    """Where a stream breaks: behind `started` and so many more events, or, if negative, before."""

    after: int
    error: OutriderError | None  # None: it just ends


@dataclass
class Session:
    """What became of one session's stream."""

    request: SessionRequest
    metadata: dict[str, str]
    epoch: int = 1
    from_token: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    cancels: list[CancelSession] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)  # a Cancel rpc came
    broken_off: bool = False  # the gateway cancelled the stream
    sent: int = 0


class ScriptedVerifier(VerifierService):
    """Plays `script(request)` for each session; `pace` is awaited before each round."""

    def __init__(self, info: VerifierInfo, script: Callable[[SessionRequest], Sequence[Round]]) -> None:
        self.info = info
        self.script = script
        self.store: dict[str, Stored] = {}  # share it with others
        self.sessions: dict[str, Session] = {}  # with their last stream
        self.resumed: list[ResumeSession] = []
        self.restored: list[SessionRequest] = []
        self.parked: list[str] = []
        self.parting = SessionParkedError("parked")  # what ends the stream of a parked one
        self.breaks: list[Break] = []  # of the next streams, one each
        self.started = asyncio.Event()
        self.silent = False  # it does not say how it is
        self.retells = False  # resumed streams begin with the first token
        self.refuse: OutriderError | None = None
        self.fail_after: tuple[int, OutriderError] | None = None  # rounds, error
        self.answers: Sequence[pb.VerifierGenerateResponse] | None = None  # instead of the script
        self.confirms = True  # whether a Cancel rpc ends the stream with a last event
        self.running = 0

    async def pace(self, session: Session, index: int) -> None:
        """Override to hold a round back."""

    async def arrive(self, wanted: ResumeSession) -> None:
        """Override to hold a Resume back."""

    async def GetInfo(self, request, context):
        if self.silent:
            await asyncio.Event().wait()
        return convert.verifier_info_to_proto(self.info)

    async def Generate(self, request, context):
        asked = convert.session_request_from_proto(request)
        session = Session(
            asked, dict(context.invocation_metadata()), asked.epoch, from_token=len(asked.generated)
        )
        self.sessions[asked.session_id] = session
        if self.refuse is not None:
            await abort(context, self.refuse)
        if self.answers is not None:
            for answer in self.answers:
                yield answer
            return
        there = self.store.get(asked.session_id)
        if asked.epoch > 1:
            self.restored.append(asked)
        if there is not None and there.epoch >= asked.epoch:
            error = StaleEpochError if asked.epoch > 1 else SessionExistsError
            await abort(context, error("the session is there already"))
        self.store[asked.session_id] = Stored(asked, asked.epoch)
        async with aclosing(self._stream(session, context)) as events:
            async for event in events:
                yield convert.generate_response(event)

    async def Resume(self, request, context):
        wanted = convert.resume_from_proto(request)
        self.resumed.append(wanted)
        if self.refuse is not None:
            await abort(context, self.refuse)
        stored = self.store.get(wanted.session_id)
        if stored is None or stored.request.tenant != wanted.tenant:
            await abort(context, SessionNotFoundError(f"there is no session {wanted.session_id}"))
        if wanted.mark not in stored.request.presentation:
            await abort(context, InvalidRequestError("it has another mark", field="mark"))
        await self.arrive(wanted)
        from_token = 0 if self.retells else wanted.from_token
        lives = self.sessions.get(wanted.session_id)
        if lives is None or lives.ended.is_set():
            stored.epoch += 1
        session = Session(stored.request, dict(context.invocation_metadata()), stored.epoch, from_token)
        self.sessions[wanted.session_id] = session
        async with aclosing(self._stream(session, context)) as events:
            async for event in events:
                yield convert.resume_response(event)

    async def _stream(self, session: Session, context):
        asked = session.request
        planned = self.breaks.pop(0) if self.breaks else None
        if planned is not None and planned.after < 0:
            await _break(context, planned)
            return
        self.running += 1
        try:
            yield SessionStarted(asked.sampling.seed, session.epoch, asked.presentation, len(asked.prompt))
            self.started.set()
            told = 0
            async for event in self._play(session, context):
                if planned is not None and told == planned.after:
                    await _break(context, planned)
                    return
                yield event
                told += 1
        except (asyncio.CancelledError, GeneratorExit):
            session.broken_off = True
            raise
        finally:
            self.running -= 1
            session.ended.set()

    async def _play(self, session: Session, context):
        asked, own = session.request, DrafterStats("scripted")
        stats = SpeculationStats(drafter="scripted", drafters=[own])
        if asked.logprobs.prompt_top is not None and not session.from_token:
            yield PromptLogprobs(1, logprobs_of(asked.prompt[1:], asked.logprobs.prompt_top))
        reason = FinishReason.LENGTH
        for index, (token_ids, accepted) in enumerate(self.script(asked)):
            skipped = max(0, min(len(token_ids), session.from_token - session.sent))
            if skipped and skipped == len(token_ids):  # a takeover knows nothing of how it came
                session.sent += skipped
                continue
            if self.fail_after is not None and index == self.fail_after[0]:
                await abort(context, self.fail_after[1])
            await self._pace(session, index)
            await self._check_owner(session, context)
            if session.told.is_set():
                break
            token_ids = token_ids[: asked.stop.max_tokens - session.sent]
            stop = next((i for i, token in enumerate(token_ids) if token in asked.stop.stop_token_ids), None)
            token_ids = token_ids[skipped:stop]
            session.sent += skipped
            accepted = max(0, min(accepted - skipped, len(token_ids)))
            stats.rounds += 1
            stats.drafts += 1
            stats.draft_tokens += DRAFTED_PER_ROUND
            stats.accepted_tokens += accepted
            own.asked = own.proposals = stats.drafts
            own.draft_tokens, own.accepted_tokens = stats.draft_tokens, stats.accepted_tokens
            if token_ids:
                told = logprobs_of(token_ids, asked.logprobs.top)
                yield SessionTokens(session.sent, tuple(token_ids), accepted, told)
            session.sent += len(token_ids)
            if stop is not None:
                reason = FinishReason.STOP
            if stop is not None or session.sent >= asked.stop.max_tokens:
                break
        if not self.confirms:  # nor does it end by itself, should the Cancel come after the last round
            await asyncio.Event().wait()
        yield await self._finished(session, reason, stats, context)

    async def _check_owner(self, session: Session, context) -> None:
        session_id = session.request.session_id
        if self.sessions[session_id] is not session:
            await abort(context, SupersededError("another client has attached to this session"))
        if self.store[session_id].epoch != session.epoch:
            await abort(context, StaleEpochError("somebody else owns the session"))

    async def _finished(self, session: Session, reason, stats, context) -> SessionFinished:
        kept = session.sent
        if session.cancels:
            if session.cancels[0].park:
                await abort(context, self.parting)
            reason = session.cancels[0].reason
            kept = session.cancels[0].keep_tokens if session.cancels[0].keep_tokens is not None else kept
        return SessionFinished(reason, Usage(len(session.request.prompt), kept, 2), stats)

    async def _pace(self, session: Session, index: int) -> None:
        pacing = asyncio.ensure_future(self.pace(session, index))
        told = asyncio.ensure_future(session.told.wait())
        try:
            await asyncio.wait((pacing, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pacing.cancel()
            told.cancel()

    async def Cancel(self, request, context):
        cancel = convert.cancel_from_proto(request)
        session = self.sessions.get(cancel.session_id)
        if session is None:
            return pb.VerifierCancelResponse(found=False)
        session.cancels.append(cancel)
        if cancel.park:
            self.parked.append(cancel.session_id)
        session.told.set()
        return pb.VerifierCancelResponse(found=not session.ended.is_set())


async def _break(context, planned: Break) -> None:
    if planned.error is not None:
        await abort(context, planned.error)


def logprobs_of(token_ids, top) -> tuple[TokenLogprobs, ...]:
    """Made up ones, if they are asked for: token 5 has -5.0, and `top` others are more probable."""
    if top is None:
        return ()
    return tuple(
        TokenLogprobs(
            token, -float(token), top + 1, tuple((rank, -float(rank) / 1000) for rank in range(top))
        )
        for token in token_ids
    )


def info_for(
    fingerprint: str, *, vocab_size: int, context_length: int = 256, name: str = "tiny"
) -> VerifierInfo:
    return VerifierInfo(
        model=ModelInfo(name, fingerprint, vocab_size, context_length, "float32", 8, 1),
        drafters=("scripted",),
        instance_id="one",
    )


@asynccontextmanager
async def running(verifier: ScriptedVerifier, port: int = 0):
    """Serve it on loopback; gives its address."""
    server = channels.make_server()
    add_verifier(server, verifier)
    health = await channels.add_health(server, [VERIFIER])
    address = channels.listen(server, "127.0.0.1", port)
    await server.start()
    await health.set_serving(True)
    try:
        yield address
    finally:
        await server.stop(0)
