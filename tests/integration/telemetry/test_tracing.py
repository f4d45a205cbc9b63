"""Spans over a real OTLP connection, and trace context from process to process."""

from __future__ import annotations

import socket

import pytest
from opentelemetry import trace
from opentelemetry.context import Context

from outrider.config.schema import TelemetryConfig
from outrider.telemetry import names, tracing
from tests.otlp_sink import OtlpSink


def configured(sink: OtlpSink, ratio: float = 1.0) -> TelemetryConfig:
    return TelemetryConfig(otlp_endpoint=sink.endpoint, sample_ratio=ratio)


def test_one_trace_over_two_services() -> None:
    """As the verifier and the drafter do it: the context travels as text in a message."""
    with OtlpSink() as sink:
        verifier = tracing.setup(configured(sink), "verifier", instance_id="v-1")
        drafter = tracing.setup(configured(sink), "drafter")
        assert verifier.enabled
        with verifier.tracer.start_as_current_span(names.SPAN_ROUND) as span:
            span.set_attributes({names.ATTR_DRAFTED: 4, names.ATTR_RUN_AHEAD_HIT: True})
            carried = tracing.traceparent_of(span)
        parent = tracing.context_from(carried)
        assert parent is not None
        drafter.tracer.start_span(names.SPAN_DRAFT, parent).end()
        assert verifier.flush()
        assert drafter.flush()
        verifier.shutdown()
        drafter.shutdown()
        by_name = {span.name: span for span in sink.spans}
    round_span, draft_span = by_name[names.SPAN_ROUND], by_name[names.SPAN_DRAFT]
    assert draft_span.trace_id == round_span.trace_id
    assert draft_span.parent_id == round_span.span_id
    assert round_span.parent_id == ""
    assert round_span.attributes == {names.ATTR_DRAFTED: 4, names.ATTR_RUN_AHEAD_HIT: True}
    assert round_span.service == "outrider-verifier"
    assert round_span.resource[names.RESOURCE_SERVICE_INSTANCE] == "v-1"
    assert round_span.resource[names.RESOURCE_SERVICE_NAMESPACE] == "outrider"
    assert draft_span.service == "outrider-drafter"
    assert draft_span.resource[names.RESOURCE_SERVICE_VERSION]


def test_the_sampling_decision_of_the_caller_is_kept() -> None:
    with OtlpSink() as sink:
        traces = tracing.setup(configured(sink, ratio=0.0), "verifier")
        own = traces.tracer.start_span("own")
        assert not own.is_recording()
        unsampled = tracing.traceparent_of(own)
        assert not int(unsampled[-2:], 16) & 1  # the decision travels too
        child = traces.tracer.start_span("child", tracing.context_from(unsampled))
        assert not child.is_recording()
        sampled = tracing.context_from("00-" + "1" * 32 + "-" + "2" * 16 + "-01")
        traces.tracer.start_span("asked for", sampled).end()
        assert traces.shutdown()
        assert [span.name for span in sink.spans] == ["asked for"]


def test_off_by_default() -> None:
    traces = tracing.setup(TelemetryConfig(), "gateway")
    assert not traces.enabled
    span = traces.tracer.start_span("anything")
    assert not span.is_recording()
    assert tracing.traceparent_of(span) == ""
    assert traces.flush()
    traces.shutdown()


def test_a_collector_that_is_away_costs_no_more_than_the_bound() -> None:
    with OtlpSink() as sink:
        pass
    traces = tracing.setup(configured(sink), "gateway")
    traces.tracer.start_span("lost").end()
    traces.shutdown()  # returns
    traces.shutdown()
    assert not traces.enabled
    assert not traces.tracer.start_span("after").is_recording()


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = f"http://127.0.0.1:{mute.getsockname()[1]}"
        traces = tracing.setup(TelemetryConfig(otlp_endpoint=endpoint), "gateway")
        traces.tracer.start_span("lost").end()
        assert not traces.shutdown(timeout_s=0.1)  # while it is still trying
        assert traces.shutdown()
        assert not traces.enabled


@pytest.mark.parametrize(
    "traceparent", ["", "junk", "00-" + "0" * 32 + "-" + "2" * 16 + "-01", "00-\u00e4-b-c", "x" * 10_000]
)
def test_malformed_context_is_no_context(traceparent: str) -> None:
    assert tracing.context_from(traceparent) is None


def test_the_global_provider_is_left_alone() -> None:
    with OtlpSink() as sink:
        traces = tracing.setup(configured(sink), "gateway")
        assert trace.get_tracer_provider() is not traces.provider
        assert trace.get_current_span(Context()) is trace.INVALID_SPAN
        traces.shutdown()
