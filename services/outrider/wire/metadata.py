"""Names of gRPC metadata, and how to read it."""

from __future__ import annotations

from collections.abc import Iterable

ERROR_LABEL = "outrider-error-label"
"""Which error of core/errors.py a status stands for."""
ERROR_FIELD = "outrider-error-field"
"""Field of the request that was wrong."""
RETRY_AFTER_MS = "retry-after-ms"
"""When to try again."""
TRACEPARENT = "traceparent"
"""W3C trace context of the caller's span."""
AUTHORIZATION = "authorization"
"""`Bearer <secret>`: an API key at a gateway, the cluster's credential between services."""
REQUEST_ID = "x-request-id"
"""Id that a client gave its request, for logs."""


def value(metadata: Iterable[tuple[str, str | bytes]] | None, key: str) -> str:
    """The first value of `key`, or an empty text.

    Clients see an `aio.Metadata`, servers a tuple: both are iterables of pairs.
    """
    for name, found in metadata or ():
        if name == key and isinstance(found, str):
            return found
    return ""


def pairs(**values: str) -> tuple[tuple[str, str], ...]:
    """Metadata of a call: underscores in names become hyphens, empty values are left out."""
    return tuple((name.replace("_", "-"), text) for name, text in values.items() if text)
