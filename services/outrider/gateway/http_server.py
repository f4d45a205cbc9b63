"""The HTTP API's server: bounded connections, TLS if configured."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from outrider.config.schema import GatewayConfig
from outrider.core.errors import ConfigError
from outrider.gateway.http_protocol import MAX_HEAD_BYTES, bounded
from outrider.gateway.http_tls import HttpTls
from outrider.wire.channels import warn_if_bare
from outrider.wire.protection import PLAIN, Protection


class HttpServer:
    """The HTTP API on a socket that is bound already."""

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        config: GatewayConfig,
        grace_s: float,
        protection: Protection = PLAIN,
    ) -> None:
        """Raises ConfigError: `protection` has no certificate for a server."""
        context = HttpTls(protection.tls).context() if protection.tls is not None else None
        host, port = listener.getsockname()[:2]
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.address = f"{'http' if context is None else 'https'}://{place}"
        self._listener = listener
        self._uvicorn = _Uvicorn(_settings(app, config, grace_s, context))
        self._serving: asyncio.Task[None] | None = None
        warn_if_bare(self.address, host, protection)

    async def start(self) -> None:
        """Serve; returns once it listens."""
        self._serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]))
        await self._uvicorn.listening.wait()

    async def stop(self) -> None:
        """Take no more connections, and wait for the answers that are being sent."""
        if self._serving is not None:
            self._uvicorn.should_exit = True
            await self._serving


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket for `HttpServer`.

    Raises:
        ConfigError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        yield listener


def _settings(
    app: FastAPI, config: GatewayConfig, grace_s: float, context: ssl.SSLContext | None
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(grace_s),
        http=bounded(config.head_timeout_s, config.unread_s, config.max_connections),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="none",
        proxy_headers=False,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )


class _Uvicorn(uvicorn.Server):
    """A server that says when it listens, and leaves signals to whoever runs the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
