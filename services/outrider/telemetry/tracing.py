"""OpenTelemetry tracing: off unless an OTLP endpoint is configured.

The provider is passed around, never made global: several services can live in one process.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outrider.config.schema import TelemetryConfig
from outrider.telemetry import names

MAX_QUEUED_SPANS = 8192
"""Spans that wait for export; more are dropped, and the service goes on."""
EXPORT_BATCH = 512
EXPORT_DELAY_MS = 1000
EXPORT_TIMEOUT_S = 5
SHUTDOWN_TIMEOUT_S = 1.0
"""How long the end of a service may wait for the collector."""

_SCOPE = "outrider"
_KEY = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(slots=True)
class Tracing:
    """One service's tracer."""

    tracer: trace.Tracer
    provider: TracerProvider | None = None

    @property
    def enabled(self) -> bool:
        """False: spans cost nothing and go nowhere."""
        return self.provider is not None

    def flush(self, timeout_s: float = EXPORT_TIMEOUT_S) -> bool:
        """Send what waits. False if that took too long."""
        return self.provider is None or self.provider.force_flush(int(timeout_s * 1000))

    def shutdown(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> bool:
        """Send what waits and stop. False if that took too long: what was left is lost. Idempotent."""
        provider, self.provider = self.provider, None
        self.tracer = trace.NoOpTracer()
        if provider is None:
            return True
        # The SDK joins its exporting thread, which may be in the middle of retries to a collector that is
        # away. A daemon thread does not hold up the end of the process.
        sending = threading.Thread(target=provider.shutdown, name="tracing-shutdown", daemon=True)
        sending.start()
        sending.join(timeout_s)
        return not sending.is_alive()


def off() -> Tracing:
    """Tracing that does nothing."""
    return Tracing(trace.NoOpTracer())


def setup(config: TelemetryConfig, service: str, *, instance_id: str = "") -> Tracing:
    """Tracing for `service` ("gateway", "verifier", "drafter").

    The caller's sampling decision is kept; a trace that begins here is sampled with
    `config.sample_ratio`. The usual OTEL_* variables apply where the configuration is silent.
    """
    if not config.otlp_endpoint:
        return off()
    provider = TracerProvider(
        resource=_resource(service, instance_id),
        sampler=ParentBased(TraceIdRatioBased(config.sample_ratio)),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(
        endpoint=config.otlp_endpoint,
        insecure=not config.otlp_endpoint.startswith("https://"),
        timeout=EXPORT_TIMEOUT_S,
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=MAX_QUEUED_SPANS,
            schedule_delay_millis=EXPORT_DELAY_MS,
            max_export_batch_size=EXPORT_BATCH,
            export_timeout_millis=EXPORT_TIMEOUT_S * 1000,
        )
    )
    return Tracing(provider.get_tracer(_SCOPE, version("outrider")), provider)


def _resource(service: str, instance_id: str) -> Resource:
    return Resource.create(
        {
            names.RESOURCE_SERVICE_NAMESPACE: "outrider",
            names.RESOURCE_SERVICE_NAME: f"outrider-{service}",
            names.RESOURCE_SERVICE_VERSION: version("outrider"),
            names.RESOURCE_SERVICE_INSTANCE: instance_id or f"{socket.gethostname()}:{os.getpid()}",
        }
    )


def traceparent_of(span: trace.Span) -> str:
    """W3C trace context of `span`, for a message or for metadata; empty if it has none."""
    if not span.get_span_context().is_valid:
        return ""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get(_KEY, "")


def context_from(traceparent: str) -> Context | None:
    """The context to start a child span in; None if `traceparent` is empty or malformed."""
    if not traceparent:
        return None
    context = _PROPAGATOR.extract({_KEY: traceparent}, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None
