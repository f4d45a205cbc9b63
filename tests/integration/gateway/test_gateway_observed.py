"""Metrics and traces of requests."""

import asyncio

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider.core.errors import SessionMovedError
from outrider.telemetry import names
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.conftest import config_for, gateway_over, ids_of
from tests.integration.gateway.scripted_verifier import Break, running
from tests.otlp_sink import OtlpSink

SECRET = "a most private prompt"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}], "seed": 4, "temperature": 0.5}
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


async def samples(client):
    page = (await client.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(found, name, **labels):
    return found[name, tuple(sorted({"model_name": "tiny", **labels}.items()))]


async def test_metrics_count_what_clients_got(client, stack):
    for _ in range(2):
        await client.post("/v1/chat/completions", json=CHAT)
    await client.post("/v1/chat/completions", json=CHAT | {"model": "other"})
    await client.post("/v1/completions", content=b"{")
    found = await samples(client)
    tokens = len(ids_of("the quick brown fox"))
    assert value(found, "outrider_generation_tokens_total") == 2 * tokens
    assert value(found, "outrider_time_to_first_token_seconds_count") == 2
    assert value(found, "outrider_e2e_request_latency_seconds_count") == 2
    assert value(found, "outrider_request_success_total", finished_reason="length") == 2
    assert value(found, "outrider_open_streams") == 0
    chat, completions = "/v1/chat/completions", "/v1/completions"
    assert value(found, "outrider_requests_total", route=chat, outcome="ok") == 2
    assert value(found, "outrider_requests_total", route=chat, outcome="model_not_found") == 1
    assert value(found, "outrider_requests_total", route=completions, outcome="invalid") == 1


async def test_open_streams_are_counted_while_they_run(client, stack, hold):
    asked = CHAT | {"stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=asked):
        assert value(await samples(client), "outrider_open_streams") == 1


async def test_grpc_requests_are_counted_too(client, generation):
    async for _ in generation.Generate(pb.GenerateRequest(prompt="hello")):
        pass
    found = await samples(client)
    route = "outrider.v1.Generation/Generate"
    assert value(found, "outrider_requests_total", route=route, outcome="ok") == 1


@pytest.fixture
async def traced(model_folder, make_verifier):
    """Gateway that traces into a sink, with its verifier."""
    verifier = make_verifier()
    with OtlpSink() as sink:
        async with running(verifier) as address:
            config = config_for(model_folder, address)
            config = config.model_copy(
                update={"telemetry": config.telemetry.model_copy(update={"otlp_endpoint": sink.endpoint})}
            )
            async with (
                gateway_over(config) as (addresses, _, _),
                httpx.AsyncClient(base_url=addresses["http"]) as client,
            ):
                yield client, verifier, sink


async def test_a_failover_is_one_event_of_the_span(traced):
    client, verifier, sink = traced
    verifier.breaks = [Break(1, SessionMovedError("drained"))]
    await client.post("/v1/chat/completions", json=CHAT)
    (span,) = await asyncio.to_thread(sink.wait, bool)
    ((name, attributes),) = span.events
    assert name == names.EVENT_FAILOVER
    assert attributes == {
        names.ATTR_REASON: "session_moved",
        names.ATTR_OUTCOME: "moved",
        names.ATTR_ATTEMPTS: len(verifier.resumed),
    }
    assert attributes.keys() <= names.ATTRIBUTES


async def test_one_span_for_a_request_between_caller_and_verifier(traced):
    client, verifier, sink = traced
    await client.post("/v1/chat/completions", json=CHAT, headers={"traceparent": TRACEPARENT})
    (span,) = await asyncio.to_thread(sink.wait, bool)
    assert (span.name, span.trace_id, span.parent_id) == ("chat tiny", TRACE, "b7ad6b7169203331")
    assert span.service == "outrider-gateway"
    (session,) = verifier.sessions.values()
    assert session.metadata["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
    assert set(span.attributes) <= names.ATTRIBUTES
    tokens = len(ids_of("the quick brown fox"))
    expected = {
        names.ATTR_OPERATION: "chat",
        names.ATTR_PROVIDER: "outrider",
        names.ATTR_REQUEST_MODEL: "tiny",
        names.ATTR_REQUEST_TEMPERATURE: 0.5,
        names.ATTR_REQUEST_SEED: 4,
        names.ATTR_FINISH_REASONS: ["length"],
        names.ATTR_OUTPUT_TOKENS: tokens,
        names.ATTR_SESSION: session.request.session_id,
    }
    assert {key: span.attributes.get(key) for key in expected} == expected
    assert SECRET not in str(span)
    assert "brown" not in str(span)


async def test_a_failed_request_says_why(traced):
    client, _, sink = traced
    await client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 4000})
    (span,) = await asyncio.to_thread(sink.wait, bool)
    assert span.attributes[names.ATTR_ERROR_TYPE] == "prompt_too_long"


async def test_without_tracing_the_callers_context_is_passed_on(client, stack):
    await client.post("/v1/chat/completions", json=CHAT, headers={"traceparent": TRACEPARENT})
    (session,) = stack.verifier.sessions.values()
    assert session.metadata["traceparent"] == TRACEPARENT


@pytest.mark.parametrize(
    "bad", ["x", "00-0-0-01", f"00-{'0' * 32}-{'0' * 16}-01", TRACEPARENT[:-2] + "\u00e9", "a" * 30000]
)
async def test_a_malformed_context_is_dropped(client, stack, bad):
    headers = {"traceparent": bad.encode("latin-1")}
    response = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert response.status_code == 200
    (session,) = stack.verifier.sessions.values()
    assert "traceparent" not in session.metadata
