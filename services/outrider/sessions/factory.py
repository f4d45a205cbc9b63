"""The store that the configuration asks for."""

from __future__ import annotations

from outrider.config.schema import StoreConfig
from outrider.sessions.memory import MemoryStore
from outrider.sessions.redis import RedisStore
from outrider.sessions.store import SessionStore


def open_store(config: StoreConfig) -> SessionStore:
    """Make the store; Redis is reached at the first call, so one that is away is no error here.

    Raises:
        ConfigError: the URL is wrong.
    """
    if config.kind == "memory":
        return MemoryStore(ttl_s=config.ttl_s)
    return RedisStore(config.url, ttl_s=config.ttl_s, timeout_s=config.timeout_s)
