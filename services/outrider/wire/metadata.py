"""Names of gRPC metadata, and how to read it."""

from __future__ import annotations

from grpc import aio

ERROR_LABEL = "outrider-error-label"
"""Which error of core/errors.py a status stands for."""
ERROR_FIELD = "outrider-error-field"
"""Field of the request that was wrong."""
RETRY_AFTER_MS = "retry-after-ms"
"""When to try again."""
TRACEPARENT = "traceparent"
"""W3C trace context of the caller's span."""
REQUEST_ID = "x-request-id"
"""Id that a client gave its request, for logs."""


def value(metadata: aio.Metadata | None, key: str) -> str:
    """The first value of `key`, or an empty text."""
    found = metadata.get(key) if metadata is not None else None
    return found if isinstance(found, str) else ""


def pairs(**values: str) -> tuple[tuple[str, str], ...]:
    """Metadata of a call: underscores in names become hyphens, empty values are left out."""
    return tuple((name.replace("_", "-"), text) for name, text in values.items() if text)
