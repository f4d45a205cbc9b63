"""Channels and servers of gRPC with every option said, health and reflection."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpc import aio
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from outrider.core.errors import ConfigError
from outrider.wire.cluster import ClusterGate
from outrider.wire.dialled import DialledChannel
from outrider.wire.guard import Guard
from outrider.wire.protection import PLAIN, Protection, exposed
from outrider.wire.tls import channel_credentials

_LOG = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A prompt of a million tokens with its features of one layer in flight fits; nothing endless does."""
KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 5_000
HANDSHAKE_TIMEOUT_MS = 10_000
"""Time for TLS and for the first words of HTTP/2, after which a connection is closed."""
RECONNECT_MIN_MS = 100
RECONNECT_MAX_MS = 2_000

HEALTH_SERVICE = "grpc.health.v1.Health"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server or channel."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_concurrent_calls: int | None = None  # server only; None: the service's own admission decides
    max_metadata_bytes: int = 16 * 1024
    max_streams: int = 1024  # server only: calls at once over one connection; the client keeps more waiting


def _common_options(limits: Limits) -> list[tuple[str, int | str]]:
    return [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_metadata_size", limits.max_metadata_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def open_channel(address: str, limits: Limits | None = None, protection: Protection = PLAIN) -> aio.Channel:
    """A channel to `address` ("host:port"). It connects at the first call and reconnects by itself.

    Each channel has its own connection: a link's health must not depend on another link's. Certificates that
    change are used from the next call on.
    """
    tls, token = protection.tls, protection.token
    options = [
        *_common_options(limits or Limits()),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", RECONNECT_MIN_MS),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MIN_MS),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
        # Retries are ours: a generation must not be started twice behind our back.
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]
    if protection.server_name:
        options.append(("grpc.ssl_target_name_override", protection.server_name))
    credential = token.metadata if token is not None else None
    if tls is not None:
        return DialledChannel(
            lambda pem: aio.secure_channel(address, channel_credentials(pem), options=options),
            pem=lambda: tls.pem,
            credential=credential,
        )
    if credential is not None:
        return DialledChannel(lambda _: aio.insecure_channel(address, options=options), credential=credential)
    return aio.insecure_channel(address, options=options)


def make_server(
    limits: Limits | None = None,
    interceptors: Sequence[aio.ServerInterceptor] = (),
    protection: Protection = PLAIN,
) -> aio.Server:
    """A server without services or port. Calls without the credential of `protection` are refused."""
    limits = limits or Limits()
    options = [
        *_common_options(limits),
        # Two processes on one port would share its connections without a word.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", limits.max_streams),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ("grpc.http2.max_ping_strikes", 4),
    ]
    gates = () if protection.token is None else (ClusterGate(protection.token),)
    return aio.server(
        options=options,
        interceptors=(Guard(), *gates, *interceptors),
        maximum_concurrent_rpcs=limits.max_concurrent_calls,
    )


def listen(server: aio.Server, host: str, port: int, protection: Protection = PLAIN) -> str:
    """Bind, before `server.start()`; returns "host:port" with the port that was really taken.

    Raises:
        ConfigError: the address cannot be bound, or `protection` has no certificate for a server.
    """
    name = f"[{host}]" if ":" in host else host
    try:
        if protection.tls is not None:
            bound = server.add_secure_port(f"{name}:{port}", protection.tls.server_credentials())
        else:
            bound = server.add_insecure_port(f"{name}:{port}")
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {name}:{port}: is it in use? Is {host} an address of this machine?"
        ) from error
    if not bound:
        raise ConfigError(
            f"cannot listen on {name}:{port}: is it in use? Is {host} an address of this machine?"
        )
    warn_if_bare(f"{name}:{bound}", host, protection)
    return f"{name}:{bound}"


def warn_if_bare(address: str, host: str, protection: Protection) -> None:
    """Say so if others than this machine can reach a server whose traffic anybody on the way can read."""
    if protection.tls is None and exposed(host):
        section = protection.section or "security"
        _LOG.warning(
            "%s is reached from other machines without TLS: set %s.certificate and %s.key",
            address,
            section,
            section,
        )


class Health:
    """grpc.health.v1 of one server: one state for the whole server and each of its services."""

    def __init__(self, services: Sequence[str]) -> None:
        self._servicer: Any = grpc_health.aio.HealthServicer()
        self._services = ("", *services)

    def add_to(self, server: aio.Server) -> None:
        """Serve it; the state is NOT_SERVING until `set_serving`."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, serving: bool) -> None:
        """Tell probes and watchers."""
        states = health_pb2.HealthCheckResponse
        for service in self._services:
            await self._servicer.set(service, states.SERVING if serving else states.NOT_SERVING)

    async def shut_down(self) -> None:
        """NOT_SERVING for good: call it before the server drains."""
        await self._servicer.enter_graceful_shutdown()


async def add_health(server: aio.Server, services: Sequence[str]) -> Health:
    """Add grpc.health.v1 for `services` (full names); not serving yet."""
    health = Health(services)
    health.add_to(server)
    await health.set_serving(False)
    return health


def add_reflection(server: aio.Server, services: Sequence[str]) -> None:
    """Let `buf curl` and grpcurl explore `services` (full names)."""
    names = (*services, HEALTH_SERVICE, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
