"""A session whose verifier is lost goes on at another one, and its client sees nothing but a pause."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from outrider.core.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    SessionMovedError,
    StaleEpochError,
    StoreUnavailableError,
    SupersededError,
    UnavailableError,
)
from outrider.core.sessions import FinishReason
from outrider.wire.messages import CancelSession, GenerationDelta, GenerationStarted
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.conftest import say
from tests.integration.gateway.failing import IDS, LOST, MAX, ROUNDS, TEXT, break_first, forever, several
from tests.integration.gateway.scripted_verifier import DRAFTED_PER_ROUND, Break


@pytest.fixture
def two(model_folder, make_verifier):
    """Starts a gateway over two verifiers."""

    def start(count: int = 2, **settings):
        return several(model_folder, [make_verifier(TEXT) for _ in range(count)], **settings)

    return start


async def lost_at(setup, after: int, error: OutriderError | None = LOST, **asked):
    """What the client sees of a stream that breaks, and of one that does not."""
    undisturbed = await setup.generate(**MAX, **asked)
    break_first(setup, after, error)
    seen = await setup.generate(**MAX, **asked)
    assert not setup.verifiers[0].breaks
    return undisturbed, seen


@pytest.mark.parametrize("error", [LOST, SessionMovedError("drained"), None], ids=["lost", "moved", "ended"])
@pytest.mark.parametrize("after", range(ROUNDS + 1))
async def test_a_stream_that_breaks_anywhere_goes_on_with_the_next_token(two, after, error):
    async with two() as setup:
        undisturbed, seen = await lost_at(setup, after, error)
    assert seen.view == undisturbed.view
    assert seen.token_ids == IDS
    (resumed,) = setup.verifiers[0].resumed + setup.verifiers[1].resumed
    assert resumed.session_id == seen.started.generation_id
    assert resumed.known == tuple(IDS[: resumed.from_token])
    assert resumed.from_token == min(3 * after, len(IDS))


@pytest.mark.parametrize("error", [LOST, StoreUnavailableError("store away")], ids=["lost", "store"])
async def test_one_that_breaks_before_it_started_keeps_its_id(two, error):
    async with two() as setup:
        break_first(setup, -1, error)
        seen = await setup.generate(**MAX)
        sessions = [session_id for verifier in setup.verifiers for session_id in verifier.sessions]
        assert seen.token_ids == IDS
        assert set(sessions) == {seen.started.generation_id}
        assert setup.verifiers[0].store[sessions[0]].epoch > 1  # whoever had it is fenced


async def test_one_that_ended_without_a_status_before_it_started_is_a_defect(two):
    async with two() as setup:
        break_first(setup, -1, None)
        with pytest.raises(InternalError, match="did not say that the session started"):
            await setup.generate(**MAX)


async def test_a_session_handed_over_leaves_the_verifier_that_drains(two):
    async with two() as setup:
        held = asyncio.Event()
        for verifier in setup.verifiers:
            verifier.pace = lambda session, index: held.wait() if index == 2 else asyncio.sleep(0)
        generating = asyncio.create_task(setup.generate(**MAX))
        while not any(verifier.sessions for verifier in setup.verifiers):
            await asyncio.sleep(0.01)
        old = setup.busy
        old.breaks = []
        (session,) = old.sessions.values()
        while session.sent < 6:
            await asyncio.sleep(0.01)
        old.info = replace(old.info, draining=True)
        old.refuse = UnavailableError("the verifier is stopping")
        old.parting = SessionMovedError("the verifier is stopping")
        session.cancels.append(PARK)
        session.told.set()
        held.set()
        seen = await generating
        assert seen.token_ids == IDS
        new = setup.other(old)
        assert [one.from_token for one in new.resumed] == [6]
        assert not old.resumed
        for _ in range(3):
            await setup.generate(**MAX)
        assert len(old.sessions) == 1


PARK = CancelSession("any", park=True)


async def test_a_stream_that_was_only_cut_goes_on_where_the_session_is(two):
    async with two() as setup:
        for _ in range(6):  # were it chance, both would be chosen
            break_first(setup, 1)
            seen = await setup.generate(**MAX)
            (holder,) = [v for v in setup.verifiers if seen.started.generation_id in v.sessions]
            assert holder.resumed
    assert seen.token_ids == IDS


async def test_where_the_store_was_lost_with_the_verifier_the_session_is_restored(two):
    async with two() as setup:
        one, other = setup.verifiers
        other.store = {}
        other.refuse = UnavailableError("not yet")
        generation = setup.stream(**MAX, sampling={"seed": 11})
        held = asyncio.Event()
        one.pace = lambda session, index: held.wait() if index == 1 else asyncio.sleep(0)
        seen = []
        async for event in generation:
            seen.append(event)
            if isinstance(event, GenerationDelta) and event.first_token + len(event.token_ids) == 3:
                one.refuse, other.refuse = UnavailableError("gone"), None
                one.fail_after = (1, UnavailableError("gone"))
                session = one.sessions[seen[0].generation_id]
                session.cancels.append(PARK)
                session.told.set()
                held.set()
        (restored,) = other.restored
        first = one.sessions[seen[0].generation_id].request
        assert restored == replace(first, generated=tuple(IDS[:3]), epoch=restored.epoch)
        assert restored.epoch > first.epoch
        told = [token for event in seen if isinstance(event, GenerationDelta) for token in event.token_ids]
        assert told == IDS


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_logprobs_come_once_each(two, after):
    async with two() as setup:
        undisturbed, seen = await lost_at(setup, after, logprobs={"top": 2, "prompt_top": 1})
        assert seen.view == undisturbed.view
        assert [entry.token_id for entry in seen.logprobs] == IDS
        assert seen.prompt_logprobs


@pytest.mark.parametrize("after", range(ROUNDS))
async def test_a_stop_string_is_found_across_a_failover(two, after):
    asked = {"stop": {"max_tokens": len(IDS), "stop": ["fox jumps"]}}
    async with two() as setup:
        undisturbed = await setup.generate(**asked)
        break_first(setup, after)
        seen = await setup.generate(**asked)
        assert seen.view == undisturbed.view
        assert seen.text == "the quick brown "
        assert seen.finished.reason is FinishReason.STOP


async def test_cancel_reaches_the_verifier_that_has_it_now(two):
    async with two() as setup:
        for verifier in setup.verifiers:
            verifier.pace = lambda session, index: forever() if index == 2 else asyncio.sleep(0)
        break_first(setup, 1)
        told = 0
        async for event in setup.stream(**MAX):
            if isinstance(event, GenerationStarted):
                session_id = event.generation_id
            elif isinstance(event, GenerationDelta):
                told += len(event.token_ids)
                if told == 6:
                    answer = await setup.client.Cancel(pb.CancelRequest(generation_id=session_id))
                    assert answer.found
        assert event.reason is FinishReason.CANCELLED
        (holder,) = [verifier for verifier in setup.verifiers if verifier.resumed]
        told_of = [(cancel.reason, cancel.keep_tokens) for cancel in holder.sessions[session_id].cancels]
        assert told_of == [(FinishReason.CANCELLED, 6)]


async def test_counts_of_several_verifiers_add_up(two):
    async with two() as setup:
        undisturbed, seen = await lost_at(setup, 2)
        assert seen.finished.usage == undisturbed.finished.usage
        assert seen.accepted == undisturbed.accepted
        stats, whole = seen.finished.speculation, undisturbed.finished.speculation
        assert stats.accepted_tokens == whole.accepted_tokens == seen.accepted
        assert stats.rounds == whole.rounds
        # of rounds that nobody can tell of any more, only the accepted drafts are known
        assert stats.draft_tokens == (whole.rounds - 2) * DRAFTED_PER_ROUND + 2 * 2


async def left_alone(setup, refusal):
    """A generation that loses the only verifier, which refuses it from then on."""
    (only,) = setup.verifiers
    break_first(setup, 2)
    only.started.clear()
    generating = asyncio.create_task(setup.generate(**MAX))
    await only.started.wait()
    only.refuse = refusal
    return only, generating


@pytest.mark.parametrize("refusal", [UnavailableError("it starts"), OverloadedError("full")])
async def test_a_session_without_a_verifier_waits_for_one_that_takes_it(two, refusal):
    async with two(1) as setup:
        only, generating = await left_alone(setup, refusal)
        while len(only.resumed) < 3:
            await asyncio.sleep(0.01)
        assert not generating.done()
        only.refuse = None
        assert (await generating).token_ids == IDS


async def test_the_wait_has_an_end(two):
    async with two(1, failover_s=0.3) as setup:
        _, generating = await left_alone(setup, UnavailableError("it never starts"))
        with pytest.raises(UnavailableError, match=r"no other one went on with the session within 0\.3 s"):
            await generating
        assert await setup.metric("outrider_failovers_total", outcome="given_up") == 1


async def test_a_request_whose_time_passes_without_a_verifier_is_told_so(two):
    async with two(1, request_timeout_s=0.5) as setup:
        only, generating = await left_alone(setup, UnavailableError("it never starts"))
        with pytest.raises(DeadlineExceededError):
            await generating
        (session,) = only.sessions.values()
        while not session.cancels:
            await asyncio.sleep(0.01)
        assert not session.cancels[-1].park


async def test_a_session_that_kills_every_verifier_is_given_up(two):
    async with two() as setup:
        plan = [Break(1, LOST), *(Break(0, LOST) for _ in range(50))]
        for verifier in setup.verifiers:
            verifier.breaks = plan
        with pytest.raises(UnavailableError, match="verifiers one after the other"):
            await setup.generate(**MAX)
        assert len(plan) > 40


@pytest.mark.parametrize("error", [InvalidRequestError("no"), InternalError("a defect")])
async def test_what_another_verifier_would_say_too_is_not_asked_again(two, error):
    async with two() as setup:
        break_first(setup, 2, error)
        with pytest.raises(type(error)):
            await setup.generate(**MAX)
        assert not setup.verifiers[0].resumed + setup.verifiers[1].resumed


@pytest.mark.parametrize("error", [SupersededError("a newer client"), StaleEpochError("a newer owner")])
async def test_a_session_that_a_newer_client_took_is_not_taken_back(two, error):
    async with two() as setup:
        break_first(setup, 2, error)
        with pytest.raises(type(error), match=str(error)):
            await setup.generate(**MAX)
        (store,) = {id(verifier.store): verifier.store for verifier in setup.verifiers}.values()
        assert [stored.epoch for stored in store.values()] == [1]
        assert not any(
            session.cancels for verifier in setup.verifiers for session in verifier.sessions.values()
        )


async def test_what_a_newer_client_took_is_no_late_claim_of_an_attempt_of_ours(two):
    async with two() as setup:
        plan = [Break(2, LOST), Break(-1, LOST), Break(1, SupersededError("reworded"))]
        for verifier in setup.verifiers:
            verifier.breaks = plan
        with pytest.raises(SupersededError):
            await setup.generate(**MAX)
        assert not plan


async def test_other_tokens_than_those_received_are_a_defect_and_never_mixed(two):
    async with two() as setup:

        def script(request):
            again = any(verifier.resumed for verifier in setup.verifiers)
            return say(TEXT.upper() if again else TEXT)

        for verifier in setup.verifiers:
            verifier.retells, verifier.script = True, script
        break_first(setup, 1)
        with pytest.raises(InternalError, match="other tokens"):
            await setup.generate(**MAX)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_tokens_that_come_again_are_dropped(two, size):
    async with two() as setup:

        def script(request):
            again = any(verifier.resumed for verifier in setup.verifiers)
            return say(TEXT, size if again else 3)

        for verifier in setup.verifiers:
            verifier.retells, verifier.script = True, script
        undisturbed, seen = await lost_at(setup, 3, logprobs={"top": 1, "prompt_top": 0})
        assert seen.view == undisturbed.view


async def test_metrics_tell_of_a_failover(two):
    async with two() as setup:
        await lost_at(setup, 2)
        await lost_at(setup, 2, SessionMovedError("drained"))
        assert await setup.metric("outrider_failovers_total", outcome="moved", reason="unavailable") == 1
        assert await setup.metric("outrider_failovers_total", outcome="moved", reason="session_moved") == 1
        assert await setup.metric("outrider_failover_attempts_total") >= 2
        assert await setup.metric("outrider_failover_pause_seconds_count") == 2


async def test_a_client_that_leaves_a_stream_leaves_it_parked(two):
    async with two(1) as setup:
        (only,) = setup.verifiers
        only.pace = lambda session, index: forever() if index else asyncio.sleep(0)
        async for event in setup.stream(**MAX):
            if isinstance(event, GenerationDelta):
                break
        while not only.parked:
            await asyncio.sleep(0.01)
        (session,) = only.sessions.values()
        assert [cancel.park for cancel in session.cancels] == [True]


async def test_a_client_that_leaves_an_answer_that_is_not_streamed_ends_it(two):
    async with two(1) as setup:
        (only,) = setup.verifiers
        only.pace = lambda session, index: forever() if index else asyncio.sleep(0)
        asking = asyncio.create_task(setup.http.post("/v1/completions", json={"prompt": "hello"}))
        await only.started.wait()
        asking.cancel()
        (session,) = only.sessions.values()
        while not session.cancels:
            await asyncio.sleep(0.01)
        assert [(cancel.park, cancel.reason) for cancel in session.cancels] == [
            (False, FinishReason.CANCELLED)
        ]


async def test_streams_that_outlive_the_grace_end_with_advice_and_are_parked(two):
    async with two(1, grace_s=0.1) as setup:
        (only,) = setup.verifiers
        only.pace = lambda session, index: forever() if index else asyncio.sleep(0)
        generating = asyncio.create_task(setup.generate(**MAX))
        await only.started.wait()
        setup.stop.set()
        with pytest.raises(UnavailableError, match="the gateway is stopping; resume it on another"):
            await generating
    assert only.parked


async def test_a_verifier_that_does_not_answer_any_more_loses_its_streams(two):
    async with two(2, verifier_timeout_s=0.3) as setup:
        held = asyncio.Event()
        for verifier in setup.verifiers:
            verifier.pace = lambda session, index: held.wait() if index == 1 else asyncio.sleep(0)
        generating = asyncio.create_task(setup.generate(**MAX))
        while not any(verifier.running for verifier in setup.verifiers):
            await asyncio.sleep(0.01)
        frozen = setup.busy
        other = setup.other(frozen)
        other.pace = lambda session, index: asyncio.sleep(0)

        frozen.silent = True
        seen = await generating
        assert seen.token_ids == IDS
        assert len(other.resumed) == 1
        held.set()
