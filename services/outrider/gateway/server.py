"""The gateway's process: both public APIs in one event loop, over one pool of verifiers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

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
from outrider.gateway.http_server import HttpServer, listening
from outrider.gateway.limits import Limiter
from outrider.gateway.observation import Observer
from outrider.gateway.openai.budget import Budget
from outrider.gateway.openai.routes import Context, make_app
from outrider.gateway.tokenizer import TextTokenizer
from outrider.gateway.tool_calls import ToolFormat
from outrider.gateway.verifiers import VerifierPool
from outrider.telemetry import tracing
from outrider.telemetry.metrics import GatewayMetrics
from outrider.wire import channels
from outrider.wire.messages import VerifierInfo
from outrider.wire.protection import Protection, internal_protection, public_protection
from outrider.wire.services import GENERATION, add_generation

_LOG = logging.getLogger(__name__)

GRACE_S = 5.0
"""How long running generations may go on after `stop`."""
LAST_WORDS_S = 1.0
"""How long clients of those that have not finished by then may take to read why they end."""


async def serve(
    config: OutriderConfig,
    *,
    ready: Callable[[dict[str, str]], None],
    stop: asyncio.Event,
    grace_s: float = GRACE_S,
) -> None:
    """Serve until `stop` is set, then let running generations finish for `grace_s` at most.

    `ready` is called with the addresses of both APIs once a verifier has answered and both listen.

    Raises:
        ConfigError: no tokenizer, an address that cannot be bound, or files that `security` names are wrong.
        ModelMismatchError: a verifier whose tokenizer is another one.
    """
    tokenizer = _tokenizer(config)
    security = _Security(config)
    traces = tracing.setup(config.telemetry, "gateway")
    registry = open_registry(config, Role.VERIFIER)
    verifiers = VerifierPool(
        registry,
        security.open_channel,
        _same_tokenizer(tokenizer),
        probe_s=config.gateway.probe_s,
        timeout_s=config.gateway.verifier_timeout_s,
    )
    try:
        info = await _unless_stopped(verifiers, stop)
        if info is not None:
            await _serve(config, security, verifiers, tokenizer, traces, info, ready, stop, grace_s)
    finally:
        await verifiers.close()
        await registry.close()
        await asyncio.to_thread(traces.shutdown)  # it sends what waits


async def _serve(
    config: OutriderConfig,
    security: _Security,
    verifiers: VerifierPool,
    tokenizer: TextTokenizer,
    traces: tracing.Tracing,
    info: VerifierInfo,
    ready: Callable[[dict[str, str]], None],
    stop: asyncio.Event,
    grace_s: float,
) -> None:
    registry = CollectorRegistry()
    observer = Observer(GatewayMetrics(registry, info.model.model_name), traces)
    generations = Generations(
        verifiers,
        tokenizer,
        observer,
        timeout_s=config.gateway.request_timeout_s,
        failover_s=config.gateway.failover_s,
        block_size=config.verifier.block_size,
        limiter=security.limiter,
    )
    context = Context(
        generations,
        observer,
        registry,
        _budget(config.gateway),
        security.authenticator,
        security.limiter,
        body_timeout_s=config.gateway.body_timeout_s,
    )
    with listening(config.gateway.host, config.gateway.http_port) as listener:
        http = HttpServer(
            make_app(context), listener, config.gateway, grace_s + LAST_WORDS_S, security.public
        )
        servicer = GenerationServicer(
            generations, observer, security.authenticator, unread_s=config.gateway.unread_s
        )
        gate = KeyGate(security.authenticator, security.limiter, observer.metrics.request)
        grpc = await _GrpcServer.create(config.gateway, servicer, gate, security.public)
        await http.start()
        await grpc.start()
        following = asyncio.create_task(grpc.follow(verifiers))
        try:
            _LOG.info("serving %s on %s and grpc://%s", info.model.model_name, http.address, grpc.address)
            ready({"http": http.address, "grpc": grpc.address})
            await stop.wait()
            _LOG.info("stopping: %d generations are running", len(generations))
        finally:
            following.cancel()
            ending = asyncio.create_task(_break_off(generations, grace_s))
            await asyncio.gather(http.stop(), grpc.stop(grace_s + LAST_WORDS_S))
            ending.cancel()
            await generations.settled()


class _Security:
    """Who may call this gateway, and how its links are protected."""

    def __init__(self, config: OutriderConfig) -> None:
        """Raises ConfigError: a file that `security` names is wrong."""
        self.public = public_protection(config.security)
        self.authenticator = Authenticator.of(config.security.api_keys_file)
        self.limiter = Limiter(self.authenticator.limits)
        self._internal = internal_protection(config.security)

    def open_channel(self, address: str) -> aio.Channel:
        """A channel to a verifier."""
        return channels.open_channel(address, protection=self._internal)


async def _break_off(generations: Generations, grace_s: float) -> None:
    """End what outlives the grace with an error that says what to do."""
    await asyncio.sleep(grace_s)
    generations.stop()


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


class _GrpcServer:
    """The gRPC API with health and reflection."""

    def __init__(self, server: aio.Server, health: channels.Health, address: str) -> None:
        self._server = server
        self._health = health
        self.address = address  # host:port

    @classmethod
    async def create(
        cls, config: GatewayConfig, service: GenerationServicer, gate: KeyGate, protection: Protection
    ) -> _GrpcServer:
        server = channels.make_server(channels.Limits(max_message_bytes=config.max_body_bytes), (gate,))
        add_generation(server, service)
        health = await channels.add_health(server, [GENERATION])
        if config.reflection:
            channels.add_reflection(server, [GENERATION])
        return cls(server, health, channels.listen(server, config.host, config.grpc_port, protection))

    async def start(self) -> None:
        await self._server.start()
        await self._health.set_serving(True)

    async def follow(self, verifiers: VerifierPool) -> None:
        """Keep the health service true: serving while a verifier is there."""
        async for available in verifiers.availability():
            await self._health.set_serving(available)

    async def stop(self, grace_s: float) -> None:
        await self._health.shut_down()
        await self._server.stop(grace_s)
