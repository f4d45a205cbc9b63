"""A client's trace context reaches every service, whatever it asks by; its span says what it asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from outrider.telemetry import names
from tests.otlp_sink import OtlpSink, Span
from tests.stack import Stack
from tests.traffic import Generated, ask, connected, take

PARENT = "b7ad6b7169203331"
SERVICES = {"outrider-gateway", "outrider-verifier", "outrider-drafter"}
COMMON: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 24,
    "temperature": 0.5,
    "seed": 3,
    "ignore_eos": True,
    "speculation": {"drafter": "twin"},
}


async def over_http(stack: Stack, traceparent: str, path: str, body: dict[str, Any]) -> None:
    async with httpx.AsyncClient(base_url=stack.http, trust_env=False, timeout=60) as client:
        answer = await client.post(path, json=COMMON | body, headers={"traceparent": traceparent})
    assert answer.status_code == 200, answer.text


async def chat(stack: Stack, traceparent: str) -> None:
    body = {"messages": [{"role": "user", "content": "fox"}]}
    await over_http(stack, traceparent, "/v1/chat/completions", body)


async def streamed_chat(stack: Stack, traceparent: str) -> None:
    body = {"messages": [{"role": "user", "content": "fox"}], "stream": True}
    await over_http(stack, traceparent, "/v1/chat/completions", body)


async def completion(stack: Stack, traceparent: str) -> None:
    await over_http(stack, traceparent, "/v1/completions", {"prompt": "fox"})


async def grpc(stack: Stack, traceparent: str) -> None:
    asked = ask("fox", drafter="twin", max_tokens=24, temperature=0.5, seed=3)
    seen = Generated()
    async with connected(stack.grpc) as stub:
        async for response in stub.Generate(asked, timeout=60, metadata=[("traceparent", traceparent)]):
            take(seen, response)
    assert len(seen.token_ids) == 24


Way = Callable[[Stack, str], Awaitable[None]]
WAYS = [
    pytest.param(chat, "chat", False, id="chat"),
    pytest.param(streamed_chat, "chat", True, id="streamed chat"),
    pytest.param(completion, "text_completion", False, id="completion"),
    pytest.param(grpc, "text_completion", True, id="gRPC"),
]


@pytest.mark.parametrize("way, operation, stream", WAYS)
async def test_one_connected_trace_through_all_services(
    tiny: Stack, sink: OtlpSink, way: Way, operation: str, stream: bool
) -> None:
    trace_id = f"{0xABC0 + [one.values[0] for one in WAYS].index(way):032x}"
    await way(tiny, f"00-{trace_id}-{PARENT}-01")

    def mine(spans: list[Span]) -> list[Span]:
        return [span for span in spans if span.trace_id == trace_id]

    def complete(spans: list[Span]) -> bool:
        ids = {span.span_id for span in mine(spans)}
        return (
            {span.service for span in mine(spans)} >= SERVICES
            and {span.parent_id for span in mine(spans)} <= ids | {PARENT}
            and any(span.service == "outrider-gateway" for span in mine(spans))
        )

    spans = mine(await asyncio.to_thread(sink.wait, complete))
    (root,) = [span for span in spans if span.parent_id == PARENT]
    assert root.service == "outrider-gateway"
    assert root.name == f"{operation} tiny"
    expected = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "outrider",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 24,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stream": stream,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.output_tokens": 24,
    }
    assert {key: root.attributes.get(key) for key in expected} == expected
    assert root.attributes["gen_ai.usage.input_tokens"] > 0
    assert set(root.attributes) <= names.ATTRIBUTES
    # The stream to the drafter carries it too: drafts hang below the rounds that asked for them.
    rounds = {span.span_id for span in spans if span.name == names.SPAN_ROUND}
    drafts = [span for span in spans if span.name == names.SPAN_DRAFT]
    assert drafts and {span.parent_id for span in drafts} <= rounds
    assert {span.service for span in drafts} == {"outrider-drafter"}
