"""A real verifier over loopback gRPC, in the test's own event loop, with its parts in reach."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc import aio
from prometheus_client import CollectorRegistry

from outrider.config.schema import DrafterConfig, OutriderConfig, RegistryConfig, VerifierConfig
from outrider.core.params import LogprobParams, SamplingParams, SpeculationParams, TokenLogprobs
from outrider.core.sessions import FinishReason
from outrider.drafting.server import serve as serve_drafter
from outrider.engine.engine import Engine
from outrider.sessions.memory import MemoryStore
from outrider.sessions.store import SessionStore
from outrider.telemetry import tracing
from outrider.telemetry.metrics import VerifierMetrics
from outrider.verifying.engine_thread import EngineThread
from outrider.verifying.links import LinkReport
from outrider.verifying.replica import Replica
from outrider.verifying.server import _listening
from outrider.wire import convert
from outrider.wire.channels import open_channel
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import (
    CancelSession,
    PromptLogprobs,
    ResumeSession,
    SessionEvent,
    SessionFinished,
    SessionRequest,
    SessionTokens,
    StopRequest,
)
from outrider.wire.services import VerifierClient, verifier_client

OFF = SpeculationParams(enabled=False)
GREEDY = SamplingParams(temperature=0.0)
TIMEOUT_S = 60.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, for as long as a test may take."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)


def sampled(seed: int, **changes: Any) -> SamplingParams:
    """Seeded sampling at temperature 1."""
    return SamplingParams(temperature=1.0, seed=seed, **changes)


def request(
    prompt: Sequence[int],
    *,
    sampling: SamplingParams = GREEDY,
    max_tokens: int = 24,
    stop: Sequence[int] = (),
    speculation: SpeculationParams | None = None,
    ignore_eos: bool = True,
    session_id: str = "",
    logprobs: LogprobParams | None = None,
) -> SessionRequest:
    """A request with an id of its own."""
    return SessionRequest(
        session_id or uuid.uuid4().hex,
        tuple(prompt),
        sampling,
        StopRequest(max_tokens, frozenset(stop), (), ignore_eos),
        speculation or SpeculationParams(),
        logprobs or LogprobParams(),
    )


@dataclass
class Reply:
    """A whole stream."""

    tokens: list[int] = field(default_factory=list)
    runs: list[SessionTokens] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # from the second token on
    finished: SessionFinished | None = None

    @property
    def reason(self) -> FinishReason:
        assert self.finished is not None
        return self.finished.reason

    def take(self, event: SessionEvent) -> None:
        """One more event; what it says must continue what came before."""
        assert self.finished is None
        if isinstance(event, SessionTokens):
            assert not self.runs or event.first_token == self.runs[0].first_token + len(self.tokens)
            self.runs.append(event)
            self.tokens.extend(event.token_ids)
            self.logprobs.extend(event.logprobs)
        elif isinstance(event, PromptLogprobs):
            assert not self.runs and event.first_position == len(self.prompt_logprobs) + 1
            self.prompt_logprobs.extend(event.entries)
        elif isinstance(event, SessionFinished):
            self.finished = event


@dataclass
class Verifier:
    """A running verifier."""

    replica: Replica
    engine: Engine
    client: VerifierClient
    registry: CollectorRegistry
    store: SessionStore
    address: str

    async def generate(self, wanted: SessionRequest) -> Reply:
        """Run one request to its end."""
        reply = Reply()
        async with asyncio.timeout(TIMEOUT_S):
            async for event in self.stream(wanted):
                reply.take(event)
        return reply

    async def generate_all(self, wanted: Sequence[SessionRequest]) -> list[list[int]]:
        """Run requests side by side; their tokens."""
        replies = await asyncio.gather(*(self.generate(one) for one in wanted))
        return [reply.tokens for reply in replies]

    async def stream(self, wanted: SessionRequest) -> AsyncIterator[SessionEvent]:
        """Events of a new session."""
        call = self.client.Generate(convert.session_request_to_proto(wanted))
        async for event in _events(call):
            yield event

    async def resume(
        self,
        session_id: str,
        from_token: int,
        *,
        known: Sequence[int] = (),
        tenant: str = "",
        mark: bytes = b"",
    ) -> AsyncIterator[SessionEvent]:
        """Events of a session from a token on."""
        wanted = ResumeSession(session_id, from_token, tenant, tuple(known), mark)
        async for event in _events(self.client.Resume(convert.resume_to_proto(wanted))):
            yield event

    async def resumed(
        self,
        session_id: str,
        from_token: int,
        *,
        known: Sequence[int] = (),
        tenant: str = "",
        mark: bytes = b"",
    ) -> Reply:
        """A session from a token on to its end."""
        reply = Reply()
        async with asyncio.timeout(TIMEOUT_S):
            async for event in self.resume(session_id, from_token, known=known, tenant=tenant, mark=mark):
                reply.take(event)
        return reply

    async def cancel(
        self,
        session_id: str,
        keep: int | None = None,
        reason: FinishReason = FinishReason.CANCELLED,
        *,
        park: bool = False,
    ) -> bool:
        """Whether such a session ran."""
        wanted = CancelSession(session_id, keep, reason, park)
        return bool((await self.client.Cancel(convert.cancel_to_proto(wanted))).found)

    @property
    def used(self) -> int:
        """KV blocks that sessions hold."""
        return self.engine.pool.used

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value, summed over the labels not given; 0 if there is none."""
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def linked(self, name: str, status: str = "ready") -> None:
        """Wait until a link to a drafter has a status."""
        await until(lambda: status in [one.status.value for one in self.replica.links.reports(name)])

    def report(self, name: str) -> LinkReport:
        """Where the only link to a drafter stands."""
        (report,) = self.replica.links.reports(name)
        return report


async def _events(call: Any) -> AsyncIterator[SessionEvent]:
    try:
        async for response in call:
            yield convert.session_event_from_proto(response.event)
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    finally:
        call.cancel()


@asynccontextmanager
async def running(
    model: Path,
    *,
    drafters: dict[str, DrafterConfig] | None = None,
    traces: tracing.Tracing | None = None,
    store: SessionStore | None = None,
    listed: RegistryConfig | None = None,
    drain_s: float = 10.0,
    wait: bool = True,
    **own: Any,
) -> AsyncIterator[Verifier]:
    """A verifier of `model` with links to `drafters`; `wait` for the links to be ready.

    `listed`: where it finds them; None: where `drafters` says.
    """
    settings = {"port": 0, "dtype": "float32", "pool_tokens": 8192, "patience_ms": 5000.0, **own}
    config = OutriderConfig(
        model=str(model),
        verifier=VerifierConfig(**settings),
        drafters=drafters or {},
        registry=listed or RegistryConfig(),
    )
    registry, thread = CollectorRegistry(), EngineThread()
    store = MemoryStore() if store is None else store
    async with AsyncExitStack() as stack:
        stack.callback(thread.close)
        engine = await thread.call(lambda: Engine.load(model, config.verifier, name=config.name))
        replica = Replica(
            config,
            engine,
            store=store,
            metrics=VerifierMetrics(registry, config.name),
            tracing=traces or tracing.off(),
        )
        replica.writer.start()
        stack.push_async_callback(replica.writer.close, 5.0)
        await stack.enter_async_context(replica.linked())
        await stack.enter_async_context(replica.running(thread))
        address = await stack.enter_async_context(_listening(config.verifier, replica, drain_s))
        channel = await stack.enter_async_context(open_channel(address))
        verifier = Verifier(replica, engine, verifier_client(channel), registry, store, address)
        for name in config.drafters if wait else ():
            await verifier.linked(name)
        yield verifier


@asynccontextmanager
async def real_drafter(target: str = "", **settings: Any) -> AsyncIterator[DrafterConfig]:
    """The drafting service itself; yields how a verifier finds it. `target`: if its tokenizer differs."""
    own = DrafterConfig(**{"port": 0, "dtype": "float32", "pool_tokens": 8192, **settings})
    ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    whole = OutriderConfig(drafters={"d": own})
    if target or own.model:
        whole = whole.model_copy(update={"model": target or own.model})
    task = asyncio.create_task(serve_drafter(whole, "d", ready=ready.set_result, stop=stop))
    await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    port = int(ready.result()["grpc"].rpartition(":")[2])
    try:
        yield own.model_copy(update={"port": port})
    finally:
        stop.set()
        await task
