"""A draft model behind the real service: the wire adds nothing and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from outrider.config.schema import TelemetryConfig
from outrider.core.errors import InternalError
from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal
from outrider.drafting.scheduler import DraftScheduler
from outrider.telemetry import names
from outrider.wire.convert.drafter import drafter_info_from_proto, drafter_info_request
from outrider.wire.messages import AdvanceDraft, OpenDraft, Stale
from tests.integration.drafting.conftest import Link, RunningDrafter
from tests.integration.drafting.oracle import Oracle
from tests.otlp_sink import OtlpSink
from tests.tiny_models import make_tiny

Start = Callable[..., Awaitable[RunningDrafter]]
PARAMS = SamplingParams(temperature=1.0, top_p=0.95, seed=11)
PROMPT = tuple(range(10, 60))
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("draft"), vocab_size=300)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


async def proposal(link: Link) -> Proposal:
    event = await link.next()
    assert isinstance(event, Proposal), event
    return event


async def test_info_names_the_model(start: Start, folder: Path) -> None:
    drafter = await start(model=str(folder), dtype="float32", pool_tokens=1024)
    async with drafter.link() as link:
        info = drafter_info_from_proto(await link.client.GetInfo(drafter_info_request()))
    assert info.method == "draft_model"
    assert (info.model.model_name, info.model.vocab_size) == (folder.name, 300)
    assert len(info.model.tokenizer_fingerprint) == 64


async def test_rounds_of_several_streams(start: Start, folder: Path, oracle: Oracle) -> None:
    drafter = await start(model=str(folder), dtype="float32", pool_tokens=2048, prefill_chunk=16, run_ahead=5)

    async def stream(first: int) -> None:
        async with drafter.link() as link:
            tokens = {name: (first, ord(name), *PROMPT) for name in "abc"}
            await link.send(*(OpenDraft(name, 1, ids, PARAMS, 4) for name, ids in tokens.items()))
            for _ in range(12):
                event = await proposal(link)
                name = event.session_id
                assert event.tree.token_ids == oracle.propose(tokens[name], PARAMS, 4)
                picks = oracle.propose(tokens[name], PARAMS, 5)
                committed = picks if event.base_len % 2 else (*picks[:2], 7)
                tokens[name] += committed
                await link.send(AdvanceDraft(name, 1, event.base_len, committed, 0, 4))

    await asyncio.gather(*(stream(first) for first in (3, 4, 5)))
    async with drafter.link() as watcher:
        load = await watcher.load(lambda load: load.sessions == 0)
        assert load.kv_usage == 0 and load.queued == 0


async def test_each_proposal_is_one_span_below_its_round(start: Start, folder: Path) -> None:
    with OtlpSink() as sink:
        drafter = await start(
            TelemetryConfig(otlp_endpoint=sink.endpoint), model=str(folder), dtype="float32", pool_tokens=1024
        )
        async with drafter.link() as link:
            parent = f"00-{TRACE}-{PARENT}-01"
            await link.send(OpenDraft("a", 1, PROMPT, PARAMS, 3, traceparent=parent))
            await proposal(link)
            await link.send(AdvanceDraft("a", 1, len(PROMPT), (5,), 0, 2, traceparent=parent))
            await proposal(link)
            await link.send(AdvanceDraft("a", 1, len(PROMPT) + 1, (5,), 0, 2, traceparent="nonsense"))
            await proposal(link)
        spans = await asyncio.to_thread(sink.wait, lambda seen: len(seen) >= 2)
    assert [span.name for span in spans] == [names.SPAN_DRAFT] * 2
    assert {(span.trace_id, span.parent_id, span.service) for span in spans} == {
        (TRACE, PARENT, "outrider-drafter")
    }
    assert [span.attributes[names.ATTR_TREE_SIZE] for span in spans] == [3, 2]
    assert [span.attributes[names.ATTR_DRAFTER] for span in spans] == ["mine", "mine"]
    assert all(span.end_ns > span.start_ns for span in spans)


async def test_ids_past_the_vocabulary_are_refused_for_their_session_only(start: Start, folder: Path) -> None:
    drafter = await start(model=str(folder), dtype="float32", pool_tokens=1024)
    async with drafter.link() as link:
        await link.send(OpenDraft("good", 1, PROMPT, PARAMS, 0), OpenDraft("bad", 1, (1, 300), PARAMS, 2))
        event = await link.next()
        assert isinstance(event, Stale) and "300" in event.detail
        await link.send(AdvanceDraft("good", 1, len(PROMPT), (5,), 0, 2))
        assert len((await proposal(link)).tree) == 2


async def test_a_defect_ends_the_drafter(start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter whose thread is gone must not look alive: its process ends, and is started again."""
    drafter = await start(model=str(folder), dtype="float32", pool_tokens=1024)

    def broken(*_: object) -> None:
        raise KeyError("defect")

    monkeypatch.setattr(DraftScheduler, "apply", broken)
    async with drafter.link() as link:
        await link.send(OpenDraft("a", 1, PROMPT, PARAMS, 2))
        with pytest.raises(InternalError):
            await asyncio.wait_for(asyncio.shield(drafter.task), 30)
