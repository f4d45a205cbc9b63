"""From a URL to a client."""

from __future__ import annotations

from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from outrider.core.errors import ConfigError

MAX_CONNECTIONS = 32


def connect(url: str, *, timeout_s: float, max_connections: int = MAX_CONNECTIONS) -> Redis:
    """A client of the server at `url`; it connects at the first call.

    Args:
        url: see StoreConfig.url.
        timeout_s: longest wait for a connection, and for an answer.
        max_connections: more calls at the same time wait for one.

    Raises:
        ConfigError: `url` cannot be understood. The text does not repeat it: it may hold a password.
    """
    address_of(url)
    pool = BlockingConnectionPool.from_url(
        url,
        protocol=2,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),  # retrying is the caller's: it knows what may be repeated
        max_connections=max_connections,
        timeout=timeout_s,
        driver_info=None,
    )
    return Redis.from_pool(pool)


def address_of(url: str) -> str:
    """`url` without user and password, for logs and messages.

    Raises:
        ConfigError: it cannot be understood. The text does not repeat it: it may hold a password.
    """
    try:
        parts = cast(dict[str, Any], parse_url(url))
    except ValueError as error:
        text = "the URL of Redis must be redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH"
        raise ConfigError(text) from error
    if "path" in parts:
        return f"unix://{parts['path']}"
    scheme = url.split("://", 1)[0]
    return f"{scheme}://{parts.get('host', 'localhost')}:{parts.get('port', 6379)}/{parts.get('db', 0)}"
