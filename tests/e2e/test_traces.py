"""One trace a request, across all services; k rounds give exactly k round spans with their parts."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import httpx
import pytest

from outrider.telemetry import names
from tests.otlp_sink import OtlpSink, Span
from tests.stack import Stack
from tests.traffic import Generated, ask, connected, generate

GATEWAY_SPAN = re.compile(r"^(text_completion|chat) tiny$")


async def trace_of(sink: OtlpSink, got: Generated, drafts: int) -> list[Span]:
    """All spans of a finished generation: the gateway's span is exported last, or nearly."""

    def mine(spans: list[Span]) -> list[Span]:
        ids = {span.trace_id for span in spans if got.generation_id in span.attributes.values()}
        return [span for span in spans if span.trace_id in ids]

    def complete(spans: list[Span]) -> bool:
        found = Counter(span.name for span in mine(spans))
        gateway = sum(count for name, count in found.items() if GATEWAY_SPAN.match(name))
        return (
            gateway >= 1
            and found[names.SPAN_VERIFY_REQUEST] >= 1
            and found[names.SPAN_ROUND] >= got.stats.rounds
            and found[names.SPAN_DRAFT] >= drafts
        )

    return mine(await asyncio.to_thread(sink.wait, complete))


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


@pytest.mark.parametrize("drafter", ["twin", "lookup", None])
async def test_k_rounds_are_k_round_spans_of_one_trace(
    tiny: Stack, sink: OtlpSink, drafter: str | None
) -> None:
    async with connected(tiny.grpc) as stub:
        got = await generate(stub, ask(drafter=drafter, max_tokens=40, temperature=1.0, seed=21))
    spans = await trace_of(sink, got, got.stats.drafts)
    assert len({span.trace_id for span in spans}) == 1
    (gateway,) = [span for span in spans if GATEWAY_SPAN.match(span.name)]
    (request,) = named(spans, names.SPAN_VERIFY_REQUEST)
    rounds = named(spans, names.SPAN_ROUND)
    assert len(rounds) == got.stats.rounds
    assert request.parent_id == gateway.span_id
    assert {span.parent_id for span in rounds} == {request.span_id}
    ids = [span.span_id for span in rounds]
    for name in (names.SPAN_VERIFY, names.SPAN_COMMIT):
        assert Counter(span.parent_id for span in named(spans, name)) == Counter(ids)
    drafts = Counter(span.parent_id for span in named(spans, names.SPAN_DRAFT))
    assert set(drafts) <= set(ids)
    assert max(drafts.values(), default=1) == 1
    assert {span.service for span in spans} >= {gateway.service, request.service}


async def test_round_spans_carry_the_counts(tiny: Stack, sink: OtlpSink) -> None:
    async with connected(tiny.grpc) as stub:
        got = await generate(stub, ask(drafter="other", max_tokens=40, temperature=1.0, seed=22))
    spans = await trace_of(sink, got, got.stats.drafts)
    rounds = named(spans, names.SPAN_ROUND)
    drafted = {span.span_id: span.attributes[names.ATTR_DRAFTED] for span in rounds}
    assert sum(drafted.values()) == got.stats.draft_tokens
    assert sum(span.attributes[names.ATTR_ACCEPTED] for span in rounds) == got.stats.accepted_tokens
    # Each proposal that was verified was drafted under the very round that verified it.
    parents = {span.parent_id for span in named(spans, names.SPAN_DRAFT)}
    assert {span_id for span_id, tokens in drafted.items() if tokens} <= parents
    assert sum(1 for tokens in drafted.values() if tokens) == got.stats.drafts


async def test_a_trace_goes_on_from_the_clients(tiny: Stack, sink: OtlpSink) -> None:
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    body = {"model": "tiny", "prompt": "fox", "max_tokens": 4, "temperature": 0}
    async with httpx.AsyncClient(base_url=tiny.http, trust_env=False, timeout=60) as client:
        answer = await client.post(
            "/v1/completions", json=body, headers={"traceparent": f"00-{trace_id}-{parent}-01"}
        )
    assert answer.status_code == 200, answer.text

    def arrived(spans: list[Span]) -> bool:
        return any(span.trace_id == trace_id and GATEWAY_SPAN.match(span.name) for span in spans)

    spans = [span for span in await asyncio.to_thread(sink.wait, arrived) if span.trace_id == trace_id]
    (gateway,) = [span for span in spans if GATEWAY_SPAN.match(span.name)]
    assert gateway.parent_id == parent
    assert gateway.attributes[names.ATTR_OPERATION] == "text_completion"
    assert gateway.attributes[names.ATTR_REQUEST_MODEL] == "tiny"
