"""Salts keep sessions apart: no KV and no text of one tenant is used for another, and no output changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.errors import InvalidRequestError
from outrider.core.params import SamplingParams, StopParams
from outrider.core.sessions import SessionRecord
from outrider.sessions.memory import MemoryStore
from outrider.telemetry import names
from outrider.wire.messages import OpenDraft, SessionRequest
from tests.integration.verifying.harness import (
    GREEDY,
    OFF,
    Reply,
    real_drafter,
    request,
    running,
    sampled,
)
from tests.integration.verifying.scripted import ScriptedDrafter, scripted

PROMPT = [3 + i for i in range(100)]
SEED = 5
SUFFIX = {"method": "suffix", "suffix_shared": True, "tree": "dynamic"}


def salted(wanted: SessionRequest, salt: str) -> SessionRequest:
    return replace(wanted, cache_salt=salt)


def cached(reply: Reply) -> int:
    assert reply.finished is not None
    return reply.finished.usage.cached_prompt_tokens


def accepted(reply: Reply) -> int:
    assert reply.finished is not None
    return reply.finished.speculation.accepted_tokens


async def test_a_prompt_cached_for_one_salt_is_not_cached_for_another(tiny: Path) -> None:
    async with running(tiny) as verifier:
        first = {salt: await verifier.generate(salted(request(PROMPT), salt)) for salt in ("", "a", "b")}
        assert [cached(reply) for reply in first.values()] == [0, 0, 0]
        for salt, reply in first.items():
            again = await verifier.generate(salted(request(PROMPT), salt))
            assert cached(again) >= 80
            assert again.tokens == reply.tokens == first[""].tokens
        assert verifier.used == 0


async def test_sessions_of_all_salts_run_side_by_side(tiny: Path) -> None:
    async with running(tiny, pool_tokens=512) as verifier:
        expected = await verifier.generate(request(PROMPT, max_tokens=40))
        batch = [salted(request(PROMPT, max_tokens=40), f"tenant {n % 3}") for n in range(9)]
        assert await verifier.generate_all(batch) == [expected.tokens] * 9
        assert verifier.used == 0


async def test_a_session_taken_over_keeps_its_salt(tiny: Path) -> None:
    store, drafter = MemoryStore(), ScriptedDrafter(lambda held: [held.propose([])])
    record = SessionRecord("s", tuple(PROMPT), GREEDY, StopParams(8), tokens=(5,), cache_salt="a")
    await store.create(record)
    async with (
        scripted(drafter) as config,
        running(tiny, store=store, drafters={"d": config}) as verifier,
    ):
        async for _ in verifier.resume("s", 0):
            pass
        opened = [command for command in drafter.commands if isinstance(command, OpenDraft)]
        assert opened and all(command.tenant == "a" for command in opened)
        assert cached(await verifier.generate(salted(request(PROMPT), "b"))) == 0
        assert cached(await verifier.generate(salted(request(PROMPT), "a"))) >= 80


async def test_a_salt_that_is_too_long_is_refused(tiny: Path) -> None:
    async with running(tiny) as verifier:
        with pytest.raises(InvalidRequestError) as refused:
            await verifier.generate(salted(request(PROMPT), "x" * 257))
        assert refused.value.field == "cache_salt"


@pytest.mark.usefixtures("patient")
async def test_text_served_to_one_tenant_is_drafted_for_no_other(tiny: Path) -> None:
    """By noise at temperature 1 this text never repeats itself: what is accepted came from served text."""
    wanted = request(PROMPT, sampling=sampled(SEED), max_tokens=40)

    def once(salt: str) -> SessionRequest:
        return salted(replace(wanted, session_id=request([1]).session_id), salt)

    async with (
        real_drafter(**SUFFIX) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        expected = (await verifier.generate(replace(once(""), speculation=OFF))).tokens
        replies = [await verifier.generate(once(salt)) for salt in ("a", "b", "", "a")]
        assert all(reply.tokens == expected for reply in replies)
        assert [accepted(reply) for reply in replies[:3]] == [0, 0, 0]
        assert accepted(replies[3]) > 20


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("sampling", [GREEDY, sampled(1), sampled(2, top_p=0.5)], ids=["greedy", "1", "2"])
async def test_on_is_off_whatever_was_served_before(
    tiny: Path, prompts: list[list[int]], sampling: SamplingParams
) -> None:
    async with (
        real_drafter(**SUFFIX, suffix_tokens=1024) as config,
        running(tiny, drafters={"d": config}) as verifier,
    ):
        batch = [request(prompt, sampling=sampling, max_tokens=60) for prompt in prompts]
        expected = await verifier.generate_all([replace(one, speculation=OFF) for one in batch])
        for salts in (["", "a"], ["a", "b"], ["a", "a"]):
            again = [
                salted(replace(one, session_id=request([1]).session_id), salts[index % 2])
                for index, one in enumerate(batch)
            ]
            assert await verifier.generate_all(again) == expected
        assert verifier.metric(names.SPEC_ACCEPTED.name) > 0
