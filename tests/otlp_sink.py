"""A real OTLP/gRPC trace receiver for tests: keeps what it gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc


@dataclass(frozen=True, slots=True)
class Span:
    """One span as it arrived; ids are hex, a root's parent is empty."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    service: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    start_ns: int
    end_ns: int
    events: tuple[tuple[str, dict[str, Any]], ...] = ()  # name, attributes


class OtlpSink(rpc.TraceServiceServicer):
    """`with OtlpSink() as sink:` serves on a free loopback port; `sink.endpoint` is for the configuration."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spans: list[Span] = []
        self._server = grpc.server(ThreadPoolExecutor(2, thread_name_prefix="otlp-sink"))
        rpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def Export(self, request: pb.ExportTraceServiceRequest, context: object) -> pb.ExportTraceServiceResponse:
        """Called by exporters, from the server's threads."""
        spans = [
            _span(span, _attributes(block.resource.attributes))
            for block in request.resource_spans
            for scope in block.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self._spans += spans
            self._changed.notify_all()
        return pb.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Span]:
        """All that arrived so far."""
        with self._changed:
            return list(self._spans)

    def wait(self, until: Callable[[list[Span]], bool], timeout_s: float = 30.0) -> list[Span]:
        """Block until what arrived satisfies `until`; call it from a thread in async tests."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not until(self._spans):
                if not self._changed.wait(deadline - time.monotonic()):
                    names = sorted(span.name for span in self._spans)
                    raise TimeoutError(f"spans after {timeout_s:g} s: {names}")
            return list(self._spans)


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        service=resource.get("service.name", ""),
        attributes=_attributes(span.attributes),
        resource=resource,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        events=tuple((event.name, _attributes(event.attributes)) for event in span.events),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
