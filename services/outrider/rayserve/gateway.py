"""The deployment `gateway`, the ingress of the application: a gateway behind Serve's proxies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from ray import serve

from outrider.config import OutriderConfig
from outrider.core.errors import ConfigError, UnavailableError
from outrider.rayserve.hosting import Ready, ServiceReplica, replica_id
from outrider.rayserve.placing import settled

if TYPE_CHECKING:  # the process that builds the application needs none of it
    from outrider.gateway.parts import Parts
    from outrider.rayserve.grpc_ingress import GenerationIngress, ServeCall
    from outrider.rayserve.http_ingress import BehindServe
    from outrider.wire.v1 import generation_pb2 as pb


CANCEL_TIMEOUT_S = 10.0
"""Longest wait for what other gateways say of a generation that is to end."""


def check(config: OutriderConfig) -> None:
    """Whether a gateway behind Serve's proxies does what `config` says.

    Raises:
        ConfigError: it would not, and somebody may rely on it.
    """
    tls = config.security.public_tls
    if tls.certificate or tls.ca:
        raise ConfigError(
            "security.public_tls has no effect under Ray Serve, whose proxies listen: set ssl_certfile and "
            "ssl_keyfile in its http_options, and end TLS of gRPC in front of it"
        )


@serve.ingress()
class Gateway(ServiceReplica):
    """A gateway. Serve calls the methods that are named as in the proto file, and the HTTP application."""

    async def __init__(self, config: OutriderConfig, *pools: Any) -> None:  # type: ignore[misc]  # awaited
        """Ready once a verifier answers. `pools`: handles of the other deployments, which nobody calls.

        Raises:
            OutriderError: see `outrider.gateway.parts.assembled`.
        """
        check(config)
        self._config = settled(config)
        self._registry = CollectorRegistry()
        self._parts: Parts | None = None
        self._ingress: GenerationIngress | None = None
        await self._start(self._serve, config.telemetry.log_level, (config.model,))

    async def _serve(self, ready: Ready, stop: asyncio.Event) -> None:
        from outrider.gateway.parts import assembled
        from outrider.gateway.presence import metrics_page, present
        from outrider.rayserve.grpc_ingress import GenerationIngress

        own = self._config.gateway
        async with assembled(self._config, stop, metrics=self._registry) as parts:
            if parts is None:
                return
            self._parts = parts
            self._ingress = GenerationIngress(parts, own.max_body_bytes, self._cancel_elsewhere)
            with metrics_page(own, self._registry) as page:
                async with present(self._config, parts, page, page, replica_id()):
                    ready({"metrics": page})
                    await stop.wait()
                # Serve has waited for what ran, so this finds only what came in since.
                parts.generations.stop()
                await parts.generations.settled()

    def __serve_build_asgi_app__(self) -> BehindServe:
        """Called by Serve after `__init__`."""
        from outrider.rayserve.http_ingress import BehindServe

        assert self._parts is not None
        return BehindServe(self._parts.app)

    async def Generate(self, request: bytes, grpc_context: ServeCall) -> AsyncIterator[pb.GenerateResponse]:
        """See the proto file."""
        assert self._ingress is not None
        async for message in self._ingress.generate(request, grpc_context):
            yield message

    async def Resume(self, request: bytes, grpc_context: ServeCall) -> AsyncIterator[pb.ResumeResponse]:
        """See the proto file."""
        assert self._ingress is not None
        async for message in self._ingress.resume(request, grpc_context):
            yield message

    async def Cancel(self, request: bytes, grpc_context: ServeCall) -> pb.CancelResponse:
        """See the proto file."""
        assert self._ingress is not None
        return await self._ingress.cancel(request, grpc_context)

    async def ListModels(self, request: bytes, grpc_context: ServeCall) -> pb.ListModelsResponse:
        """See the proto file."""
        assert self._ingress is not None
        return await self._ingress.list_models(request, grpc_context)

    async def cancel_here(self, generation_id: str, tenant: str) -> bool:
        """Called by other gateways, see Generations.cancel."""
        assert self._parts is not None
        return await self._parts.generations.cancel(generation_id, tenant)

    async def _cancel_elsewhere(self, generation_id: str, tenant: str) -> bool:
        """Ask all gateways. One that goes meanwhile has parked what it had, or soon will."""
        here = serve.get_replica_context()
        gateways = serve.get_deployment_handle(here.deployment, here.app_name)
        asked = gateways.broadcast("cancel_here", generation_id, tenant)
        try:
            found = await asked.results_async(timeout_s=CANCEL_TIMEOUT_S, return_exceptions=True)
        except TimeoutError:
            raise UnavailableError("not all gateways have answered: cancel it again") from None
        return True in found

    def record_replica_metadata(self) -> dict[str, Any]:
        """Called by Serve, once."""
        return self._metadata("gateway")
