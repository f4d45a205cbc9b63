"""Whose a session is: the tenant that its gateway knows, and what the client says itself."""

from __future__ import annotations

MARK = "\x1e"
"""Begins a salt that holds a tenant. No client's own salt may hold it (limits.check_cache_salt)."""


def salt_of(tenant: str, cache_salt: str) -> str:
    """What keeps apart the KV and text of two owners: equal only for the same tenant and the same salt."""
    return f"{MARK}{tenant}{MARK}{cache_salt}" if tenant else cache_salt
