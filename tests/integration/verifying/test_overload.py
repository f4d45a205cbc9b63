"""More requests than a verifier can run: who waits, for how long, and who is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc import aio

from outrider.core.errors import OverloadedError, SessionNotFoundError
from outrider.core.params import StopParams
from outrider.core.sessions import SessionRecord
from outrider.wire import convert
from outrider.wire.messages import SessionRequest, SessionTokens
from tests.integration.verifying.harness import GREEDY, Reply, Verifier, request, running, until


def of(tenant: str, prompt: Sequence[int], max_tokens: int = 8) -> SessionRequest:
    return replace(request(prompt, max_tokens=max_tokens), tenant=tenant)


async def sent(verifier: Verifier, wanted: SessionRequest) -> asyncio.Task[Reply]:
    """A request that the verifier has taken in."""
    task = asyncio.create_task(verifier.generate(wanted))
    await until(lambda: wanted.session_id in verifier.replica.streams or task.done())
    return task


async def test_one_tenants_flood_keeps_anothers_request_waiting_for_one_session_only(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny, max_sessions=1, max_queue=100) as verifier:
        flood = [await sent(verifier, of("flood", prompts[2])) for _ in range(60)]
        await until(lambda: sum(task.done() for task in flood) >= 3)
        single = of("single", prompts[3])
        ended_then: int | None = None
        async with asyncio.timeout(60):
            async for event in verifier.stream(single):
                if ended_then is None:
                    ended_then = sum(task.done() for task in flood)
                if isinstance(event, SessionTokens):
                    break
        assert ended_then is not None
        # The one that ran when it came, and one more that may have started while its message was under way.
        assert sum(task.done() for task in flood) <= ended_then + 2
        assert all(len(reply.tokens) == 8 for reply in await asyncio.gather(*flood))


async def test_a_full_queue_gives_the_heaviest_tenants_youngest_place_to_a_lighter_one(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny, max_sessions=1, max_queue=3) as verifier:
        heavy = [await sent(verifier, of("heavy", prompts[2], 400)) for _ in range(4)]
        await until(lambda: verifier.replica.places.running == 1)
        with pytest.raises(OverloadedError, match="4 sessions run or wait") as caught:
            await verifier.generate(of("heavy", prompts[2]))
        assert 0.1 <= caught.value.retry_after_s <= 60
        light = await sent(verifier, of("light", prompts[3]))
        with pytest.raises(OverloadedError, match="others have fewer") as caught:
            await heavy[-1]
        assert 0.1 <= caught.value.retry_after_s <= 60
        assert [len(reply.tokens) for reply in await asyncio.gather(*heavy[:-1])] == [400] * 3
        assert len((await light).tokens) == 8
        assert not verifier.used
        assert verifier.metric("outrider_sessions_refused_total", reason="full") == 1
        assert verifier.metric("outrider_sessions_refused_total", reason="put_out") == 1


async def test_a_request_whose_deadline_passes_while_it_waits_never_starts(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny, max_sessions=1) as verifier:
        first = await sent(verifier, of("", prompts[2], 400))
        await until(lambda: verifier.replica.places.running == 1)
        late = of("", prompts[3])
        call = verifier.client.Generate(convert.session_request_to_proto(late), timeout=0.05)
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not first.done(), "the first one ran for longer than the deadline"
        await until(lambda: late.session_id not in verifier.replica.streams)
        await first
        assert verifier.metric("outrider_request_queue_time_seconds_count") == 1
        assert verifier.replica.places.running == verifier.replica.places.waiting == 0


async def test_a_limit_for_the_wait_refuses_those_that_reach_it(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny, max_sessions=1, queue_timeout_s=0.05) as verifier:
        first = await sent(verifier, of("", prompts[2], 400))
        await until(lambda: verifier.replica.places.running == 1)
        with pytest.raises(OverloadedError, match=r"waited 0\.05 s for its turn"):
            await verifier.generate(of("", prompts[3]))
        assert len((await first).tokens) == 400


async def test_places_are_given_back_however_a_session_ends(tiny: Path, prompts: list[list[int]]) -> None:
    async with running(tiny, max_sessions=1, max_queue=1) as verifier:
        places = verifier.replica.places
        for _ in range(3):
            wanted = of("", prompts[2], 400)
            task = await sent(verifier, wanted)
            again = wanted.session_id  # the id is in use: refused, and no place is kept for it
            with pytest.raises(Exception, match="runs here already"):
                await verifier.generate(replace(wanted, session_id=again))
            with pytest.raises(Exception, match="max_tokens"):
                await verifier.generate(of("", prompts[2], 10**6))
            assert places.running + places.waiting == 1
            assert await verifier.cancel(wanted.session_id)
            await task
            assert places.running + places.waiting == 0


async def test_resuming_what_is_not_there_or_not_ones_own_puts_nobody_out(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny, max_sessions=1, max_queue=3) as verifier:
        first = of("heavy", prompts[2], 60)
        running_id = first.session_id
        heavy = [await sent(verifier, first)]
        heavy += [await sent(verifier, of("heavy", prompts[2], 60)) for _ in range(3)]
        await until(lambda: verifier.replica.places.running == 1)
        await verifier.store.create(
            SessionRecord("parked", (1, 2), GREEDY, StopParams(8), tenant="heavy"),
        )
        for session_id in ("nowhere", "parked", running_id):
            with pytest.raises(SessionNotFoundError):
                await verifier.resumed(session_id, 0, tenant="stranger")
        assert all(len(reply.tokens) == 60 for reply in await asyncio.gather(*heavy))


async def test_sessions_that_were_parked_while_they_waited_come_back_as_new_ones(
    tiny: Path, prompts: list[list[int]]
) -> None:
    async with running(tiny, max_sessions=1, max_queue=3, detached_s=0.0) as verifier:
        parked = [of("many", prompts[2]) for _ in range(3)]
        first = await sent(verifier, of("few", prompts[2], 400))
        await until(lambda: verifier.replica.places.running == 1)
        for one in parked:
            task = await sent(verifier, one)
            task.cancel()
            await until(lambda one=one: one.session_id not in verifier.replica.streams)  # type: ignore[misc]
        fewer = [await sent(verifier, of("few", prompts[3])), await sent(verifier, of("other", prompts[3]))]
        back = await sent(verifier, of("many", prompts[3]))
        for one in parked:
            with pytest.raises(OverloadedError):
                await verifier.resumed(one.session_id, 0, tenant="many")
        assert [len((await task).tokens) for task in (first, *fewer, back)] == [400, 8, 8, 8]
        assert (await verifier.resumed(parked[0].session_id, 0, tenant="many")).tokens
