"""Clients that stay but do not read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc import aio

from outrider.core.errors import SessionParkedError
from outrider.core.params import LogprobParams
from outrider.core.sessions import FinishReason
from outrider.wire import convert
from outrider.wire.messages import SessionFinished
from outrider.wire.services import verifier_client
from tests.integration.verifying.harness import Reply, _events, request, running, until

NARROW = [("grpc.http2.lookahead_bytes", 64), ("grpc.http2.bdp_probe", 0)]
"""A client that does not read stops its server after a few events."""


async def test_a_client_without_a_deadline_that_does_not_read_leaves_its_session_to_the_store(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.verifying.sending.UNREAD_S", 0.02)
    own = running(tiny, detached_s=0.0)
    async with own as verifier, aio.insecure_channel(verifier.address, options=NARROW) as channel:
        wanted = request(prompts[2], max_tokens=480)
        call = verifier_client(channel).Generate(convert.session_request_to_proto(wanted))
        await call.initial_metadata()
        await until(lambda: not len(verifier.replica.streams) and not verifier.used)
        finished = verifier.replica.streams.finished(wanted.session_id)
        assert finished is not None and finished.parked and finished.tokens < 480
        record = await verifier.store.load(wanted.session_id)
        assert record.finish_reason is None and len(record.tokens) == finished.tokens
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "has read nothing" in (caught.value.details() or "")


async def test_a_client_with_a_deadline_may_take_its_time(
    tiny: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.verifying.sending.UNREAD_S", 0.02)
    async with running(tiny) as verifier, aio.insecure_channel(verifier.address, options=NARROW) as channel:
        wanted = convert.session_request_to_proto(request(prompts[2], max_tokens=480))
        call = verifier_client(channel).Generate(wanted, timeout=120)
        await call.initial_metadata()
        await until(lambda: not len(verifier.replica.streams))
        reply = Reply()
        async for response in call:
            event = convert.session_event_from_proto(response.event)
            reply.take(event)
        assert isinstance(event, SessionFinished) and reply.reason is FinishReason.LENGTH
        assert len(reply.tokens) == 480


@pytest.mark.parametrize("logprobs", [LogprobParams(), LogprobParams(top=5)], ids=["tokens", "logprobs"])
async def test_a_client_that_leaves_too_much_unread_has_its_session_parked_and_can_go_on(
    tiny: Path, prompts: list[list[int]], logprobs: LogprobParams
) -> None:
    """Whatever its deadline: neither memory nor KV is held for it, and nothing is lost."""
    wanted = request(prompts[2], max_tokens=480, logprobs=logprobs)
    own = running(tiny, max_unread_bytes=10_000)
    async with own as verifier, aio.insecure_channel(verifier.address, options=NARROW) as channel:
        expected = await verifier.generate(replace(wanted, session_id="undisturbed"))
        call = verifier_client(channel).Generate(convert.session_request_to_proto(wanted), timeout=300)
        await call.initial_metadata()
        await until(lambda: not len(verifier.replica.streams) and not verifier.used)
        finished = verifier.replica.streams.finished(wanted.session_id)
        assert finished is not None and finished.parked and finished.tokens < 480
        reply = Reply()
        with pytest.raises(SessionParkedError, match="can be resumed"):
            async for event in _events(call):
                reply.take(event)
        assert len(reply.tokens) == finished.tokens
        async for event in verifier.resume(wanted.session_id, len(reply.tokens)):
            reply.take(event)
        assert (reply.tokens, reply.logprobs) == (expected.tokens, expected.logprobs)
        assert reply.reason is FinishReason.LENGTH
