"""One trace from the client through Serve's ingress down to each round, in a real OTLP receiver."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx
import pytest

from outrider.telemetry import names
from tests.otlp_sink import OtlpSink, Span
from tests.serve_cluster import ServeApp
from tests.traffic import Generated, ask, connected, take

PARENT = "b7ad6b7169203331"
SERVE = "ray-serve"
TOKENS = 24


async def over_http(app: ServeApp, traceparent: str) -> None:
    body = {"model": "tiny", "prompt": "fox", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    async with httpx.AsyncClient(base_url=app.cluster.http, trust_env=False, timeout=60) as client:
        answer = await client.post("/v1/completions", json=body, headers={"traceparent": traceparent})
    assert answer.status_code == 200, answer.text


async def over_grpc(app: ServeApp, traceparent: str) -> None:
    seen = Generated()
    async with connected(app.cluster.grpc) as stub:
        asked = ask("fox", drafter="twin", max_tokens=TOKENS)
        async for response in stub.Generate(asked, timeout=60, metadata=[("traceparent", traceparent)]):
            take(seen, response)
    assert len(seen.token_ids) == TOKENS


@pytest.mark.parametrize(("number", "call"), [(1, over_http), (2, over_grpc)])
async def test_the_ingress_the_gateway_and_each_round_are_one_tree(
    tiny_app: ServeApp, sink: OtlpSink, number: int, call: Callable[[ServeApp, str], Awaitable[None]]
) -> None:
    trace_id = f"{number:032x}"
    await call(tiny_app, f"00-{trace_id}-{PARENT}-01")

    def whole(spans: list[Span]) -> bool:
        mine = [span for span in spans if span.trace_id == trace_id]
        services = {span.service for span in mine}
        ids = {span.span_id for span in mine} | {PARENT}
        gateway = any(span.service == "outrider-gateway" for span in mine)
        return gateway and SERVE in services and all(span.parent_id in ids for span in mine)

    found = await asyncio.to_thread(sink.wait, whole)
    spans = {span.span_id: span for span in found if span.trace_id == trace_id}
    (root,) = [span for span in spans.values() if span.parent_id == PARENT]
    assert root.service == SERVE and root.name.startswith("proxy_"), (
        "the client's span is the ingress's parent"
    )
    (gateway,) = [span for span in spans.values() if span.service == "outrider-gateway"]
    path = [gateway]
    while path[-1].parent_id != PARENT:
        path.append(spans[path[-1].parent_id])
    assert [span.service for span in path[1:]] == [SERVE] * (len(path) - 1)
    assert path[1].name.startswith("replica_handle_request gateway")
    count = Counter(span.name for span in spans.values())
    (request,) = [span for span in spans.values() if span.name == names.SPAN_VERIFY_REQUEST]
    assert request.parent_id == gateway.span_id
    assert count[names.SPAN_ROUND] == count[names.SPAN_VERIFY] > 0
    rounds = {span.span_id for span in spans.values() if span.name == names.SPAN_ROUND}
    drafts = [span for span in spans.values() if span.name == names.SPAN_DRAFT]
    assert drafts and {span.parent_id for span in drafts} <= rounds
    assert {span.service for span in drafts} == {"outrider-drafter"}
