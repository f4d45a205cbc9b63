"""Links to drafters: pairing, silence, loss, return; and none at all where speculation is off."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.params import SpeculationParams
from outrider.core.rounds import StaleReason
from outrider.verifying.links import LinkStatus
from outrider.wire.messages import AdvanceDraft, CloseDraft, Draining, OpenDraft, Stale
from tests.integration.verifying.harness import OFF, Reply, real_drafter, request, running
from tests.integration.verifying.scripted import CloseStreamError, Held, ScriptedDrafter, scripted

INFO = DrafterInfo(ModelInfo("scripted"), "scripted", (), 64, 64, "one")


def echo(held: Held) -> list:
    return [held.propose([held.tokens[-1]] * held.wanted)]


def drafts(reply: Reply) -> int:
    assert reply.finished is not None
    return reply.finished.speculation.drafts


@pytest.mark.parametrize(
    "speculation",
    [OFF, SpeculationParams(max_draft_tokens=0), SpeculationParams(enabled=False, drafter="s")],
)
async def test_speculation_off_means_no_message_at_all(
    tiny: Path, prompts: list[list[int]], speculation: SpeculationParams
) -> None:
    drafter = ScriptedDrafter(echo)
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        await verifier.generate_all([request(p, speculation=speculation) for p in prompts])
        stream = verifier.stream(request(prompts[0], speculation=speculation, max_tokens=300))
        await anext(stream)
        await stream.aclose()
        assert drafter.commands == []
        on = request(prompts[0])
        await verifier.generate_all([on, *(request(p, speculation=speculation) for p in prompts)])
    assert {command.session_id for command in drafter.commands} == {on.session_id}


async def test_a_draft_length_of_nought_by_default_means_off(tiny: Path, prompts: list[list[int]]) -> None:
    drafter = ScriptedDrafter(echo)
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, draft_length=0) as verifier,
    ):
        await verifier.generate(request(prompts[1]))
        assert drafter.commands == []
        await verifier.generate(request(prompts[1], speculation=SpeculationParams(max_draft_tokens=2)))
        assert drafter.commands != []


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("own", "asked", "wanted"),
    [(None, None, 4), (7, None, 7), (1, None, 1), (7, 3, 3), (99, None, 9), (7, 99, 9), (0, 2, 2)],
)
async def test_a_drafter_may_have_a_draft_length_of_its_own(
    tiny: Path, prompts: list[list[int]], own: int | None, asked: int | None, wanted: int
) -> None:
    drafter = ScriptedDrafter(echo)
    async with scripted(drafter) as config:
        two = {"first": config, "s": config.model_copy(update={"draft_length": own})}
        async with running(tiny, drafters=two, max_draft_tokens=9) as verifier:
            speculation = SpeculationParams(drafter="s", max_draft_tokens=asked)
            await verifier.generate(request(prompts[1], speculation=speculation))
    assert max(c.draft_length for c in drafter.commands if isinstance(c, AdvanceDraft)) == wanted


@pytest.mark.usefixtures("patient")
async def test_what_a_drafter_is_told(tiny: Path, prompts: list[list[int]]) -> None:
    drafter = ScriptedDrafter(echo)
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        wanted = request(prompts[3], max_tokens=12)
        reply = await verifier.generate(wanted)
    opened, *advances, closed = drafter.commands
    assert isinstance(opened, OpenDraft) and isinstance(closed, CloseDraft)
    assert opened.token_ids == wanted.prompt and opened.sampling == wanted.sampling
    told: list[int] = []
    for command, run in zip(advances, reply.runs, strict=False):
        assert isinstance(command, AdvanceDraft)
        assert command.base_len == len(wanted.prompt) + len(told)
        assert (command.token_ids, command.accepted) == (run.token_ids, run.accepted)
        told += command.token_ids
        assert command.draft_length == min(4, 12 - len(told) - 1)
        assert command.patience_us > 0


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (replace(INFO, model=ModelInfo("other", tokenizer_fingerprint="f" * 64)), "another tokenizer"),
        (replace(INFO, protocol_version=2), "protocol version 2"),
        (replace(INFO, features=("hidden_9",)), "needs features"),
    ],
)
async def test_a_drafter_that_does_not_fit_is_refused_and_said_so(
    tiny: Path,
    prompts: list[list[int]],
    info: DrafterInfo,
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafter = ScriptedDrafter(echo, info=info)
    with caplog.at_level(logging.ERROR, "outrider.verifying"):
        async with scripted(drafter) as config, running(tiny, drafters={"s": config}, wait=False) as verifier:
            await verifier.linked("s", "refused")
            report = verifier.report("s")
            assert report.status is LinkStatus.REFUSED and says in report.detail
            assert verifier.metric("outrider_drafter_link_state", drafter="s", state="refused") == 1
            assert len((await verifier.generate(request(prompts[0]))).tokens) == 24
    assert drafter.commands == [] and says in caplog.text


async def test_a_padded_vocabulary_is_accepted(tiny: Path, prompts: list[list[int]]) -> None:
    info = replace(INFO, model=ModelInfo("padded", vocab_size=640))
    drafter = ScriptedDrafter(echo, info=info)
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        assert drafts(await verifier.generate(request(prompts[0]))) > 0


async def test_a_drafter_that_comes_late_goes_and_comes_back(
    tiny: Path, prompts: list[list[int]], free_port
) -> None:
    drafter, port = ScriptedDrafter(echo), free_port()
    async with scripted(ScriptedDrafter(echo)) as config:
        pass
    config = config.model_copy(update={"port": port})
    async with running(tiny, drafters={"s": config}, wait=False) as verifier:
        off = (await verifier.generate(request(prompts[2]))).tokens
        async with scripted(drafter, port):
            await verifier.linked("s")
            on = await verifier.generate(request(prompts[2]))
            assert on.tokens == off and drafts(on) > 0
        await verifier.linked("s", "down")
        gone = await verifier.generate(request(prompts[2]))
        assert gone.tokens == off and drafts(gone) == 0
        async with scripted(drafter, port):
            await verifier.linked("s")
            back = await verifier.generate(request(prompts[2]))
            assert back.tokens == off and drafts(back) > 0


async def test_a_session_is_opened_again_when_its_stream_broke(tiny: Path, prompts: list[list[int]]) -> None:
    broken = []

    def script(held: Held) -> list:
        if len(held.tokens) > len(prompts[2]) + 20 and not broken:
            broken.append(held)
            raise CloseStreamError
        return echo(held)

    drafter = ScriptedDrafter(script)
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        wanted = request(prompts[2], max_tokens=480)
        reply = await verifier.generate(wanted)
        again = drafts(await verifier.generate(request(prompts[2])))
        assert len(reply.tokens) == 480 and broken and drafter.streams == 2 and again > 0


async def test_a_frozen_drafter_costs_bounded_time_and_is_used_again(
    tiny: Path, prompts: list[list[int]]
) -> None:
    drafter = ScriptedDrafter(echo)
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, patience_ms=30.0, max_misses=2, rest_ms=100.0) as verifier,
    ):
        off = (await verifier.generate(request(prompts[2], max_tokens=200, speculation=OFF))).tokens
        drafter.reading.clear()
        frozen = await verifier.generate(request(prompts[2], max_tokens=200))
        assert frozen.tokens == off and drafts(frozen) == 0
        assert frozen.finished is not None and 0 < frozen.finished.speculation.missed < 20
        drafter.reading.set()
        async with asyncio.timeout(30):
            while not drafts(await verifier.generate(request(prompts[2], max_tokens=200))):
                pass


async def test_a_drafter_that_does_not_read_loses_the_link_not_the_verifier_its_memory(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.verifying.outgoing._MAX_PENDING", 4)
    drafter = ScriptedDrafter(echo)
    async with (
        scripted(drafter) as config,
        running(tiny, drafters={"s": config}, patience_ms=20.0, max_misses=1, rest_ms=20.0) as verifier,
    ):
        drafter.reading.clear()
        async with asyncio.timeout(60):  # gRPC itself takes 64 KiB before it stops to accept
            while verifier.report("s").status is LinkStatus.READY:
                await verifier.generate(request([5] * 400, max_tokens=100))
        assert "does not read" in verifier.report("s").detail
        drafter.reading.set()
        await verifier.linked("s")
        async with asyncio.timeout(30):
            while not drafts(await verifier.generate(request(prompts[2]))):
                pass


async def test_stale_too_long_ends_drafting_for_that_session_only(
    tiny: Path, prompts: list[list[int]]
) -> None:
    def script(held: Held) -> list:
        if len(held.tokens) > 100:
            return [Stale(held.session_id, held.epoch, StaleReason.TOO_LONG)]
        return echo(held)

    drafter = ScriptedDrafter(script)
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        wanted = request(prompts[2], max_tokens=300)
        long, short = await asyncio.gather(verifier.generate(wanted), verifier.generate(request(prompts[3])))
        assert len(long.tokens) == 300 and drafts(short) > 0
    about = [command for command in drafter.commands if command.session_id == wanted.session_id]
    assert isinstance(about[-1], CloseDraft) and len(about) < 110


async def test_real_drafters_that_are_full_or_too_short(
    tiny: Path, tiny_draft: Path, prompts: list[list[int]]
) -> None:
    async with (
        real_drafter(model=str(tiny_draft), max_sessions=2) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        batch = [request(p, max_tokens=120) for p in prompts]
        off = await verifier.generate_all([request(p, max_tokens=120, speculation=OFF) for p in prompts])
        assert await verifier.generate_all(batch) == off


async def test_a_draining_drafter_gets_no_new_sessions(tiny: Path, prompts: list[list[int]]) -> None:
    drafter = ScriptedDrafter(lambda held: [Draining(1000), *echo(held)])
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        first = await verifier.generate(request(prompts[2]))
        assert drafts(first) > 0
        assert verifier.metric("outrider_drafter_link_state", drafter="s", state="draining") == 1
        sent = len(drafter.commands)
        second = await verifier.generate(request(prompts[2]))
        assert second.tokens == first.tokens and len(drafter.commands) == sent
