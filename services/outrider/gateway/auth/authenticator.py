"""From the key that a caller shows to the tenant that he is."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from outrider.config.files import Reloaded
from outrider.core.errors import UnauthenticatedError
from outrider.gateway.auth.entries import KeyEntry, KeyLimits, hash_of
from outrider.gateway.auth.key_file import read_keys

MAX_KEY_CHARS = 256
"""Longer ones are refused unread."""

_NO_LIMITS = KeyLimits()


def _now() -> datetime:
    return datetime.now(UTC)


class _Table:
    """The keys by hash, and the limits by name."""

    def __init__(self, entries: Iterable[KeyEntry] = ()) -> None:
        self.by_hash = {entry.hash: entry for entry in entries}
        self.limits = {entry.name: entry.limits for entry in self.by_hash.values()}


class Authenticator:
    """Knows the keys; or asks for none. The file is read again when it changes."""

    def __init__(self, path: Path | None, *, now: Callable[[], datetime] = _now) -> None:
        """`path` None: whoever calls is served, as tenant "".

        Raises:
            ConfigError: the file cannot be read, or an entry is wrong.
        """
        self._now = now
        self._table = (
            None
            if path is None
            else Reloaded([path], lambda: _Table(read_keys(path)), "security.api_keys_file")
        )

    @classmethod
    def of(cls, path: str) -> Self:
        """From the configuration, where an empty text stands for none."""
        return cls(Path(path) if path else None)

    @property
    def asks(self) -> bool:
        """Whether callers need a key."""
        return self._table is not None

    def tenant(self, key: str) -> str:
        """Whose `key` is; "" where none is asked for.

        The table is searched by hash, so the time that this takes depends on bits that no caller can choose.

        Raises:
            UnauthenticatedError: it is missing, unknown or has expired.
        """
        if self._table is None:
            return ""
        if not key:
            raise UnauthenticatedError("an API key is needed, as 'Authorization: Bearer KEY'")
        shown = hash_of(key) if len(key) <= MAX_KEY_CHARS else ""
        entry = self._table.current().by_hash.get(shown)
        if entry is None or not hmac.compare_digest(entry.hash, shown):
            raise UnauthenticatedError("the API key is not valid")
        if entry.has_expired(self._now()):
            raise UnauthenticatedError("the API key has expired")
        return entry.name

    def limits(self, tenant: str) -> KeyLimits:
        """What `tenant` may use; nothing is limited for one without a key."""
        if self._table is None:
            return _NO_LIMITS
        return self._table.current().limits.get(tenant, _NO_LIMITS)


def bearer(authorization: str) -> str:
    """The key in an Authorization header; "" if it holds none."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
