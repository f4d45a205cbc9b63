"""The gateway's process: both public APIs in one event loop, each on a listener of its own."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable

from grpc import aio

from outrider.config.schema import GatewayConfig, OutriderConfig
from outrider.gateway.auth.grpc_gate import KeyGate
from outrider.gateway.generations import Generations
from outrider.gateway.grpc_service import GenerationServicer
from outrider.gateway.http_server import HttpServer, listening
from outrider.gateway.parts import Parts, assembled
from outrider.gateway.presence import metrics_page, present
from outrider.gateway.verifiers import VerifierPool
from outrider.wire import channels
from outrider.wire.protection import Protection, public_protection
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

    `ready` is called with the addresses of both APIs once a verifier has answered and both listen (and with
    "metrics" if these have a listener of their own).

    Raises:
        ConfigError: no tokenizer, an address that cannot be bound, or files that `security` names are wrong.
        ModelMismatchError: a verifier whose tokenizer is another one.
    """
    public = public_protection(config.security)
    async with assembled(config, stop) as parts:
        if parts is not None:
            with metrics_page(config.gateway, parts.metrics) as page:
                await _serve(config, parts, public, page, ready, stop, grace_s)


async def _serve(
    config: OutriderConfig,
    parts: Parts,
    public: Protection,
    page: str,
    ready: Callable[[dict[str, str]], None],
    stop: asyncio.Event,
    grace_s: float,
) -> None:
    own, generations = config.gateway, parts.generations
    with listening(own.host, own.http_port) as listener:
        http = HttpServer(parts.app, listener, own, grace_s + LAST_WORDS_S, public)
        grpc = await _GrpcServer.create(own, parts.servicer, parts.gate, public)
        await http.start()
        await grpc.start()
        following = asyncio.create_task(grpc.follow(parts.verifiers))
        addresses = {"http": http.address, "grpc": grpc.address} | ({"metrics": page} if page else {})
        # Prometheus is told of pages that are plain HTTP only.
        shown = page or (http.address.removeprefix("http://") if public.tls is None else "")
        try:
            async with present(config, parts, grpc.address, shown, uuid.uuid4().hex):
                _LOG.info("serving %s on %s and grpc://%s", parts.model, http.address, grpc.address)
                ready(addresses)
                await stop.wait()
            _LOG.info("stopping: %d generations are running", len(generations))
        finally:
            following.cancel()
            ending = asyncio.create_task(_break_off(generations, grace_s))
            await asyncio.gather(http.stop(), grpc.stop(grace_s + LAST_WORDS_S))
            ending.cancel()
            await generations.settled()


async def _break_off(generations: Generations, grace_s: float) -> None:
    """End what outlives the grace with an error that says what to do."""
    await asyncio.sleep(grace_s)
    generations.stop()


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
