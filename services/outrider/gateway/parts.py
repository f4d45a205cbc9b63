"""A gateway without its listeners: both public APIs over one pool of verifiers, whoever takes calls in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from grpc import aio
from prometheus_client import CollectorRegistry

from outrider.catalogue import resolve
from outrider.config.schema import GatewayConfig, OutriderConfig
from outrider.core.errors import ModelMismatchError
from outrider.discovery import Role, open_registry
from outrider.gateway.auth import Authenticator
from outrider.gateway.auth.grpc_gate import KeyGate
from outrider.gateway.generations import Generations
from outrider.gateway.grpc_service import GenerationServicer
from outrider.gateway.limits import Limiter
from outrider.gateway.observation import Observer
from outrider.gateway.openai.budget import Budget
from outrider.gateway.openai.routes import Context, make_app
from outrider.gateway.targets import Targets
from outrider.gateway.tokenizer import TextTokenizer
from outrider.gateway.tool_calls import ToolFormat
from outrider.gateway.verifiers import VerifierPool
from outrider.telemetry import tracing
from outrider.telemetry.metrics import GatewayMetrics
from outrider.wire import channels
from outrider.wire.messages import VerifierInfo
from outrider.wire.protection import internal_protection

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the listeners of a gateway need."""

    model: str  # name of the model that is served
    app: FastAPI  # the HTTP API
    servicer: GenerationServicer  # the gRPC API
    gate: KeyGate  # in front of it
    generations: Generations
    verifiers: VerifierPool
    metrics: CollectorRegistry
    targets: Targets


@asynccontextmanager
async def assembled(
    config: OutriderConfig, stop: asyncio.Event, *, metrics: CollectorRegistry | None = None
) -> AsyncIterator[Parts | None]:
    """The parts of a gateway once a verifier answers, however long that takes; None if `stop` is set first.

    `metrics`: for its metrics; None: a registry of its own.

    Raises:
        ConfigError: no tokenizer, or files that `security` names are wrong.
        ModelMismatchError: a verifier whose tokenizer is another one.
    """
    tokenizer = _tokenizer(config)
    security = _Security(config)
    traces = tracing.setup(config.telemetry, "gateway")
    registry = open_registry(config, Role.VERIFIER, Role.DRAFTER)
    verifiers = VerifierPool(
        registry,
        security.open_channel,
        _same_tokenizer(tokenizer),
        probe_s=config.gateway.probe_s,
        timeout_s=config.gateway.verifier_timeout_s,
    )
    try:
        info = await _unless_stopped(verifiers, stop)
        if info is None:
            yield None
            return
        own = _Own(verifiers, tokenizer, traces, metrics or CollectorRegistry(), Targets(registry))
        yield _assemble(config, security, own, info.model.model_name)
    finally:
        await verifiers.close()
        await registry.close()
        await asyncio.to_thread(traces.shutdown)  # it sends what waits


class _Security:
    """Who may call this gateway, and how its links to verifiers are protected."""

    def __init__(self, config: OutriderConfig) -> None:
        """Raises ConfigError: a file that `security` names is wrong."""
        self.authenticator = Authenticator.of(config.security.api_keys_file)
        self.limiter = Limiter(self.authenticator.limits)
        self._internal = internal_protection(config.security)

    def open_channel(self, address: str) -> aio.Channel:
        """A channel to a verifier."""
        return channels.open_channel(address, protection=self._internal)


@dataclass(frozen=True, slots=True)
class _Own:
    """What a gateway has before it knows what it serves."""

    verifiers: VerifierPool
    tokenizer: TextTokenizer
    traces: tracing.Tracing
    metrics: CollectorRegistry
    targets: Targets


def _assemble(config: OutriderConfig, security: _Security, own: _Own, model: str) -> Parts:
    counted = GatewayMetrics(own.metrics, model)
    counted.watch(own.verifiers)
    observer = Observer(counted, own.traces)
    authenticator, limiter = security.authenticator, security.limiter
    generations = Generations(
        own.verifiers,
        own.tokenizer,
        observer,
        timeout_s=config.gateway.request_timeout_s,
        failover_s=config.gateway.failover_s,
        block_size=config.verifier.block_size,
        limiter=limiter,
    )
    context = Context(
        generations,
        observer,
        own.metrics,
        own.targets,
        _budget(config.gateway),
        authenticator,
        limiter,
        body_timeout_s=config.gateway.body_timeout_s,
    )
    return Parts(
        model,
        make_app(context),
        GenerationServicer(generations, observer, authenticator, unread_s=config.gateway.unread_s),
        KeyGate(authenticator, limiter, counted.request),
        generations,
        own.verifiers,
        own.metrics,
        own.targets,
    )


def _tokenizer(config: OutriderConfig) -> TextTokenizer:
    parser = config.gateway.tool_parser
    return TextTokenizer.load(
        resolve(config.model),
        tool_format=None if parser == "auto" else ToolFormat(parser),
        trust_templates=config.gateway.trust_request_chat_template,
    )


def _budget(config: GatewayConfig) -> Budget:
    return Budget(config.max_body_bytes, config.max_choices, config.max_request_tokens)


async def _unless_stopped(verifiers: VerifierPool, stop: asyncio.Event) -> VerifierInfo | None:
    """Wait for a verifier; None if `stop` is set first."""
    _LOG.info("waiting for a verifier; requests are taken once one answers")
    connecting = asyncio.create_task(verifiers.connect())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
        return connecting.result() if connecting.done() else None
    finally:
        connecting.cancel()
        stopping.cancel()
        await asyncio.gather(connecting, stopping, return_exceptions=True)


def _same_tokenizer(tokenizer: TextTokenizer) -> Callable[[VerifierInfo, str], None]:
    def check(info: VerifierInfo, address: str) -> None:
        theirs = info.model.tokenizer_fingerprint
        if theirs != tokenizer.fingerprint:
            raise ModelMismatchError(
                f"verifier {address} serves {info.model.model_name} with another tokenizer "
                f"({theirs[:12]}...) than this gateway's model ({tokenizer.fingerprint[:12]}...): "
                "`model` must be the same in both configurations"
            )

    return check
