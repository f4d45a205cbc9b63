"""One trace through Ray Serve's ingress: where Serve's own spans go, and how ours hang on them.

Serve makes spans if `RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH=outrider.rayserve.tracing:span_processors` is in
the environment of the whole cluster. Our own spans go where `telemetry` says, with providers of our own.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import get_current_span

from outrider.telemetry.tracing import traceparent_of


def span_processors() -> list[SpanProcessor]:
    """Called by Serve once in each of its processes. The usual OTEL_EXPORTER_OTLP_* and OTEL_BSP_* apply."""
    return [BatchSpanProcessor(OTLPSpanExporter())]


def current_traceparent() -> str:
    """W3C trace context of Serve's span around what runs here; empty if there is none."""
    return traceparent_of(get_current_span())
