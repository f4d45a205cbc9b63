"""k rounds give exactly k round spans in the caller's trace, each with its children; off costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outrider.core.params import SpeculationParams
from outrider.telemetry import names
from outrider.telemetry.tracing import Tracing
from outrider.wire import convert
from outrider.wire.messages import AdvanceDraft, OpenDraft, SessionFinished
from tests.integration.verifying.harness import OFF, request, running
from tests.integration.verifying.scripted import ScriptedDrafter, scripted

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("speculation", [OFF, SpeculationParams()], ids=["off", "on"])
async def test_k_rounds_give_k_round_spans(
    tiny: Path, prompts: list[list[int]], speculation: SpeculationParams
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Tracing(provider.get_tracer("test"), provider)
    drafter = ScriptedDrafter(lambda held: [held.propose([held.tokens[-1]] * held.wanted)])
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, traces=traces) as verifier,
    ):
        message = convert.session_request_to_proto(request(prompts[6], speculation=speculation))
        call = verifier.client.Generate(message, metadata=(("traceparent", CALLER),))
        events = [convert.session_event_from_proto(r.event) async for r in call]
    finished = events[-1]
    assert isinstance(finished, SessionFinished)
    spans = exporter.get_finished_spans()
    by_name: dict[str, list[ReadableSpan]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
        assert span.context is not None
        assert span.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    rounds = finished.speculation.rounds
    assert {name: len(found) for name, found in by_name.items()} == {
        names.SPAN_VERIFY_REQUEST: 1,
        names.SPAN_ROUND: rounds,
        names.SPAN_VERIFY: rounds,
        names.SPAN_COMMIT: rounds,
    }
    (whole,) = by_name[names.SPAN_VERIFY_REQUEST]
    ids = set()
    for span in by_name[names.SPAN_ROUND]:
        assert span.parent is not None and whole.context is not None and span.context is not None
        assert span.parent.span_id == whole.context.span_id
        ids.add(f"{span.context.span_id:016x}")
        assert span.attributes is not None and span.attributes[names.ATTR_EPOCH] == 1
    drafted = sum(int(str(span.attributes[names.ATTR_DRAFTED])) for span in by_name[names.SPAN_ROUND])  # type: ignore[index]
    accepted = sum(int(str(span.attributes[names.ATTR_ACCEPTED])) for span in by_name[names.SPAN_ROUND])  # type: ignore[index]
    assert drafted == finished.speculation.draft_tokens
    assert accepted == finished.speculation.accepted_tokens
    told = [c.traceparent for c in drafter.commands if isinstance(c, OpenDraft | AdvanceDraft)]
    asked = [parent for parent in told if parent]
    assert len(asked) == (0 if speculation is OFF else finished.speculation.drafts)
    assert {parent.split("-")[2] for parent in asked} <= ids


async def test_without_tracing_nothing_is_said_of_it(tiny: Path, prompts: list[list[int]]) -> None:
    drafter = ScriptedDrafter(lambda held: [held.propose([1])])
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        await verifier.generate(request(prompts[2]))
        for part in names.ROUND_PARTS:
            assert verifier.metric("outrider_round_part_seconds_count", part=part) > 0
    assert all(not getattr(command, "traceparent", "") for command in drafter.commands)
