"""A verifier without a model: real gRPC, tokens from a script in any grouping."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from outrider.core.errors import OutriderError
from outrider.core.models import ModelInfo
from outrider.core.params import TokenLogprobs
from outrider.core.sessions import DrafterStats, FinishReason, SpeculationStats, Usage
from outrider.wire import channels, convert
from outrider.wire.errors import abort
from outrider.wire.messages import (
    CancelSession,
    PromptLogprobs,
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
class Session:
    """What became of one session."""

    request: SessionRequest
    metadata: dict[str, str]
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
        self.sessions: dict[str, Session] = {}
        self.started = asyncio.Event()
        self.refuse: OutriderError | None = None
        self.fail_after: tuple[int, OutriderError] | None = None  # rounds, error
        self.answers: Sequence[pb.VerifierGenerateResponse] | None = None  # instead of the script
        self.confirms = True  # whether a Cancel rpc ends the stream with a last event
        self.running = 0

    async def pace(self, session: Session, index: int) -> None:
        """Override to hold a round back."""

    async def GetInfo(self, request, context):
        return convert.verifier_info_to_proto(self.info)

    async def Generate(self, request, context):
        asked = convert.session_request_from_proto(request)
        session = Session(asked, dict(context.invocation_metadata()))
        self.sessions[asked.session_id] = session
        if self.refuse is not None:
            await abort(context, self.refuse)
        if self.answers is not None:
            for answer in self.answers:
                yield answer
            return
        self.running += 1
        try:
            yield convert.generate_response(SessionStarted(asked.sampling.seed, 1))
            self.started.set()
            async for event in self._play(session, context):
                yield convert.generate_response(event)
        except (asyncio.CancelledError, GeneratorExit):
            session.broken_off = True
            raise
        finally:
            self.running -= 1
            session.ended.set()

    async def _play(self, session: Session, context):
        asked, own = session.request, DrafterStats("scripted")
        stats = SpeculationStats(drafter="scripted", drafters=[own])
        if asked.logprobs.prompt_top is not None:
            yield PromptLogprobs(1, logprobs_of(asked.prompt[1:], asked.logprobs.prompt_top))
        reason = FinishReason.LENGTH
        for index, (token_ids, accepted) in enumerate(self.script(asked)):
            if self.fail_after is not None and index == self.fail_after[0]:
                await abort(context, self.fail_after[1])
            await self._pace(session, index)
            if session.told.is_set():
                break
            token_ids = token_ids[: asked.stop.max_tokens - session.sent]
            stop = next((i for i, token in enumerate(token_ids) if token in asked.stop.stop_token_ids), None)
            token_ids = token_ids[:stop]
            stats.rounds += 1
            stats.drafts += 1
            stats.draft_tokens += DRAFTED_PER_ROUND
            stats.accepted_tokens += min(accepted, len(token_ids))
            own.asked = own.proposals = stats.drafts
            own.draft_tokens, own.accepted_tokens = stats.draft_tokens, stats.accepted_tokens
            if token_ids:
                told = logprobs_of(token_ids, asked.logprobs.top)
                yield SessionTokens(session.sent, tuple(token_ids), min(accepted, len(token_ids)), told)
            session.sent += len(token_ids)
            if stop is not None:
                reason = FinishReason.STOP
            if stop is not None or session.sent >= asked.stop.max_tokens:
                break
        if not self.confirms:  # nor does it end by itself, should the Cancel come after the last round
            await asyncio.Event().wait()
        kept = session.sent
        if session.cancels:
            reason = session.cancels[0].reason
            kept = session.cancels[0].keep_tokens if session.cancels[0].keep_tokens is not None else kept
        yield SessionFinished(reason, Usage(len(asked.prompt), kept, 2), stats)

    async def _pace(self, session: Session, index: int) -> None:
        pacing = asyncio.ensure_future(self.pace(session, index))
        told = asyncio.ensure_future(session.told.wait())
        try:
            await asyncio.wait((pacing, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pacing.cancel()
            told.cancel()

    async def Resume(self, request, context):
        raise NotImplementedError
        yield

    async def Cancel(self, request, context):
        cancel = convert.cancel_from_proto(request)
        session = self.sessions.get(cancel.session_id)
        if session is None:
            return pb.VerifierCancelResponse(found=False)
        session.cancels.append(cancel)
        if session.ended.is_set():
            return pb.VerifierCancelResponse(found=False)
        session.told.set()
        return pb.VerifierCancelResponse(found=True)


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
