"""Stop tokens and length inside accepted runs; requests that cannot be served."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc import aio

from outrider.core.errors import (
    InvalidRequestError,
    ModelMismatchError,
    OverloadedError,
    PromptTooLongError,
    SessionExistsError,
)
from outrider.core.params import SamplingParams, SpeculationParams
from outrider.core.sessions import FinishReason
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import SessionStarted
from outrider.wire.v1 import verifier_pb2 as pb
from tests.integration.verifying.harness import OFF, request, running, sampled, until
from tests.integration.verifying.scripted import ScriptedDrafter, knowing, scripted

RUN = SpeculationParams(max_draft_tokens=8)


@pytest.mark.usefixtures("patient")
async def test_stop_tokens_and_max_tokens_at_every_offset_of_a_run(
    tiny: Path, prompts: list[list[int]]
) -> None:
    prompt, sampling = prompts[3], sampled(21)
    answers: dict[tuple[int, ...], list[int]] = {}
    drafter = ScriptedDrafter(knowing(answers, lambda _, right: right))
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        full = (await verifier.generate(request(prompt, sampling=sampling, max_tokens=30))).tokens
        answers[tuple(prompt)] = full
        for length in range(1, 21):
            reply = await verifier.generate(
                request(prompt, sampling=sampling, max_tokens=length, speculation=RUN)
            )
            assert reply.tokens == full[:length] and reply.reason is FinishReason.LENGTH
        for token in dict.fromkeys(full[:20]):
            expected = full[: full.index(token)]
            for speculation in (OFF, RUN):
                reply = await verifier.generate(
                    request(prompt, sampling=sampling, stop=[token], max_tokens=30, speculation=speculation)
                )
                assert reply.tokens == expected and reply.reason is FinishReason.STOP
                assert reply.finished is not None
                assert reply.finished.stop_token_id == token
                assert reply.finished.usage.completion_tokens == len(expected)
                stats = reply.finished.speculation
                assert stats.accepted_tokens <= min(stats.draft_tokens, len(expected))
        assert verifier.used == 0
        await until(lambda: not drafter.held)


async def test_a_stop_beyond_the_length_does_not_count_and_one_before_does(
    tiny: Path, prompts: list[list[int]]
) -> None:
    prompt = prompts[3]
    async with running(tiny) as verifier:
        full = (await verifier.generate(request(prompt, sampling=sampled(21), max_tokens=12))).tokens
        new = next(i for i in range(1, 12) if full[i] not in full[:i])
        cut = await verifier.generate(request(prompt, sampling=sampled(21), max_tokens=new, stop=[full[new]]))
        assert (cut.tokens, cut.reason) == (full[:new], FinishReason.LENGTH)
        at = await verifier.generate(
            request(prompt, sampling=sampled(21), max_tokens=new + 1, stop=[full[new]])
        )
        assert (at.tokens, at.reason) == (full[:new], FinishReason.STOP)


async def test_the_models_own_end_ends_unless_ignored(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny) as verifier:
        for seed in range(200):
            reply = await verifier.generate(
                request(
                    prompts[2], sampling=SamplingParams(50.0, seed=seed), ignore_eos=False, max_tokens=300
                )
            )
            if reply.reason is FinishReason.STOP:
                break
        assert reply.finished is not None and reply.finished.stop_token_id == 2
        on = await verifier.generate(
            request(prompts[2], sampling=SamplingParams(50.0, seed=seed), max_tokens=300)
        )
        assert on.tokens[: len(reply.tokens) + 1] == [*reply.tokens, 2] and len(on.tokens) == 300


async def test_without_max_tokens_it_runs_to_the_end_of_the_context(tiny: Path) -> None:
    async with running(tiny) as verifier:
        reply = await verifier.generate(request([5] * 490, max_tokens=0))
        assert len(reply.tokens) == 512 - 490 and reply.reason is FinishReason.LENGTH


async def test_without_max_tokens_it_runs_to_the_end_of_the_pool(tiny: Path) -> None:
    async with running(tiny, pool_tokens=256) as verifier:
        reply = await verifier.generate(request([5] * 240, max_tokens=0))
        assert len(reply.tokens) == 17 and reply.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"prompt": [5] * 512}, PromptTooLongError, "prompt"),
        ({"prompt": [5] * 100, "max_tokens": 413}, PromptTooLongError, "max_tokens"),
        ({"prompt": [5] * 100, "max_tokens": 158}, PromptTooLongError, "max_tokens"),
        ({"prompt": [5] * 257}, PromptTooLongError, "prompt"),
        ({"prompt": [512]}, InvalidRequestError, None),
        ({"prompt": []}, InvalidRequestError, None),
        ({"session_id": "a b"}, InvalidRequestError, "session_id"),
        ({"sampling": SamplingParams(temperature=-1)}, InvalidRequestError, None),
        ({"speculation": SpeculationParams(drafter="nobody")}, InvalidRequestError, "speculation.drafter"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(
    tiny: Path, changes: dict, error: type[InvalidRequestError], field: str | None
) -> None:
    async with running(tiny, pool_tokens=256) as verifier:
        with pytest.raises(error) as caught:
            await verifier.generate(request(**{"prompt": [5, 6], **changes}))
        if field:
            assert caught.value.field == field
        assert len((await verifier.generate(request([5, 6]))).tokens) == 24


async def test_the_error_for_an_unknown_drafter_lists_the_known_ones(tiny: Path) -> None:
    drafter = ScriptedDrafter(lambda held: [])
    async with scripted(drafter) as config, running(tiny, drafters={"one": config}) as verifier:
        with pytest.raises(InvalidRequestError, match="one"):
            await verifier.generate(request([5], speculation=SpeculationParams(drafter="two")))


async def test_an_id_in_use_is_refused(tiny: Path) -> None:
    async with running(tiny) as verifier:
        wanted = request([5], session_id="same", max_tokens=400)
        stream = verifier.stream(wanted)
        assert isinstance(await anext(stream), SessionStarted)
        with pytest.raises(SessionExistsError):
            await verifier.generate(wanted)
        assert len([event async for event in stream]) == 401
        with pytest.raises(SessionExistsError):
            await verifier.generate(wanted)


async def test_more_than_fit_the_queue_are_told_to_come_back(tiny: Path) -> None:
    async with running(tiny, max_sessions=1, max_queue=1) as verifier:
        streams = [verifier.stream(request([5], max_tokens=400)) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(OverloadedError) as caught:
            await verifier.generate(request([5]))
        assert caught.value.retry_after_s > 0
        for stream in streams:
            assert len([event async for event in stream]) == 401
        await verifier.generate(request([5]))


async def test_an_unset_seed_is_drawn_and_told(tiny: Path) -> None:
    async with running(tiny) as verifier:
        seeds = []
        for _ in range(2):
            message = pb.VerifierGenerateRequest(session_id=f"s{len(seeds)}", token_ids=[5])
            message.stop.max_tokens = 1
            call = verifier.client.Generate(message)
            events = [response.event async for response in call]
            seeds.append(events[0].started.seed)
        assert seeds[0] != seeds[1]


async def test_get_info_tells_what_is_served_and_refuses_another_protocol(tiny: Path) -> None:
    drafter = ScriptedDrafter(lambda held: [])
    async with scripted(drafter) as config, running(tiny, drafters={"s": config}) as verifier:
        info = await verifier.client.GetInfo(pb.VerifierGetInfoRequest(protocol_version=1))
        assert list(info.drafters) == ["s"] and info.model.vocab_size == 512
        assert list(info.eos_token_ids) == [2] and info.instance_id
        with pytest.raises(aio.AioRpcError) as caught:
            await verifier.client.GetInfo(pb.VerifierGetInfoRequest(protocol_version=99))
        assert isinstance(from_rpc_error(caught.value), ModelMismatchError)
