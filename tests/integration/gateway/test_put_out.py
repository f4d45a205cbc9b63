"""Verifiers that are full, or put a waiting session out: where it goes, what its client is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from outrider.core.errors import OverloadedError, UnavailableError
from outrider.core.sessions import FinishReason
from outrider.wire.messages import VerifierLoad
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.failing import IDS, MAX, TEXT, break_first, forever, several


@pytest.fixture
def two(model_folder, make_verifier):
    """Starts a gateway over two verifiers."""
    return lambda: several(model_folder, [make_verifier(TEXT) for _ in range(2)])


async def test_all_full_the_client_is_told_the_soonest_time(two):
    async with two() as setup:
        one, other = setup.verifiers
        one.refuse = OverloadedError("full", retry_after_s=7)
        other.refuse = OverloadedError("full", retry_after_s=3)
        answer = await setup.http.post("/v1/completions", json={"prompt": "hello"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
        assert len(one.sessions) == len(other.sessions) == 1


async def test_one_that_is_put_out_of_a_queue_goes_where_there_is_room(two):
    async with two() as setup:
        break_first(setup, 0, OverloadedError("put out"))
        seen = await setup.generate(**MAX)
        assert seen.token_ids == IDS
        sessions = [verifier.sessions[seen.started.generation_id] for verifier in setup.verifiers]
        assert sorted(session.epoch for session in sessions) == [1, 2]
        assert await setup.metric("outrider_failovers_total") == 0


async def put_out_and_held(setup):
    """A session that was put out of a queue, while another verifier has not yet said that it goes on."""
    reached, release = asyncio.Event(), asyncio.Event()

    async def arrive(wanted):
        reached.set()
        await release.wait()

    for verifier in setup.verifiers:
        verifier.arrive = arrive
        verifier.pace = lambda session, index: forever() if index == 1 else asyncio.sleep(0)
    break_first(setup, 0, OverloadedError("put out"))
    events = aiter(setup.stream(**MAX))
    started = await anext(events)
    rest = asyncio.create_task(anext(events))
    await reached.wait()
    return started.generation_id, events, rest, release


async def test_a_cancel_while_it_goes_where_there_is_room_reaches_it_there(two):
    async with two() as setup:
        session_id, _events, rest, release = await put_out_and_held(setup)
        cancelling = asyncio.ensure_future(setup.client.Cancel(pb.CancelRequest(generation_id=session_id)))
        assert (await cancelling).found
        release.set()
        assert (await rest).reason is FinishReason.CANCELLED
        (holder,) = [verifier for verifier in setup.verifiers if verifier.resumed]
        assert holder.sessions[session_id].cancels[0].reason is FinishReason.CANCELLED
        assert setup.verifiers[0].running == setup.verifiers[1].running == 0


async def test_a_gateway_that_stops_while_a_session_goes_where_there_is_room_does_not_wait_for_it(
    model_folder, make_verifier
):
    verifiers = [make_verifier(TEXT) for _ in range(2)]
    async with several(model_folder, verifiers, grace_s=0.2) as setup:
        _, _, rest, release = await put_out_and_held(setup)
        setup.stop.set()
        await asyncio.sleep(0.5)
        release.set()
        async with asyncio.timeout(2):
            with pytest.raises(UnavailableError, match="gateway is stopping"):
                await rest


async def test_one_that_is_put_out_where_no_other_has_room_is_told_when_to_try_again(
    model_folder, make_verifier
):
    verifiers = [make_verifier(TEXT) for _ in range(2)]
    for verifier in verifiers:
        verifier.info = replace(verifier.info, load=VerifierLoad(running=1, max_running=1))
    async with several(model_folder, verifiers) as setup:
        break_first(setup, 0, OverloadedError("put out", retry_after_s=4))
        answer = await setup.http.post("/v1/completions", json={"prompt": "hello"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "4")
        assert not setup.verifiers[0].resumed + setup.verifiers[1].resumed
