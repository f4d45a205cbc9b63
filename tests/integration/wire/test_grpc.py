"""Servers and clients over real loopback sockets: typed calls, errors, limits, health, reflection."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.core.errors import ConfigError, InvalidRequestError, OverloadedError, UnavailableError
from outrider.core.models import DrafterInfo, ModelInfo
from outrider.core.rounds import Proposal
from outrider.core.trees import TokenTree
from outrider.wire import channels, convert, errors, metadata, services
from outrider.wire.messages import CloseDraft, Draining, VerifierInfo
from outrider.wire.v1 import drafter_pb2 as d
from outrider.wire.v1 import verifier_pb2 as v

INFO = VerifierInfo(ModelInfo("tiny"), instance_id="i-1")


class Verifier(services.VerifierService):
    """Answers GetInfo, refuses everything else in different ways."""

    def __init__(self) -> None:
        self.traceparent = ""

    async def GetInfo(self, request: Any, context: Any) -> v.VerifierGetInfoResponse:
        self.traceparent = metadata.value(context.invocation_metadata(), metadata.TRACEPARENT)
        return convert.verifier_info_to_proto(INFO)

    async def Generate(
        self, request: v.VerifierGenerateRequest, context: Any
    ) -> AsyncIterator[v.VerifierGenerateResponse]:
        try:
            convert.session_request_from_proto(request)
        except InvalidRequestError as error:
            await errors.abort(context, error)
        yield v.VerifierGenerateResponse()

    async def Resume(self, request: Any, context: Any) -> AsyncIterator[v.VerifierResumeResponse]:
        yield v.VerifierResumeResponse()
        await errors.abort(context, OverloadedError("full", retry_after_s=0.25))

    async def Cancel(self, request: Any, context: Any) -> v.VerifierCancelResponse:
        await asyncio.Event().wait()
        raise AssertionError


class Drafter(services.DrafterService):
    """Proposes one token for each command, then drains."""

    async def GetInfo(self, request: Any, context: Any) -> d.DrafterGetInfoResponse:
        info = DrafterInfo(ModelInfo("tiny"), "fixed", (), 4, 8, "i-2")
        return convert.drafter_info_to_proto(info)

    async def Draft(
        self, request_iterator: AsyncIterable[d.DraftRequest], context: Any
    ) -> AsyncIterator[d.DraftResponse]:
        async for request in request_iterator:
            commands = [convert.command_from_proto(item) for item in request.commands]
            tree = TokenTree.chain([7])
            proposals = [Proposal(c.session_id, c.epoch, 3, tree) for c in commands]
            yield d.DraftResponse(events=map(convert.event_to_proto, proposals))
        yield d.DraftResponse(events=[convert.event_to_proto(Draining(5))])


@asynccontextmanager
async def serving(
    *, limits: channels.Limits | None = None, reflection: bool = False
) -> AsyncIterator[tuple[str, Verifier, channels.Health]]:
    server, verifier = channels.make_server(limits), Verifier()
    services.add_verifier(server, verifier)
    services.add_drafter(server, Drafter())
    names = (services.VERIFIER, services.DRAFTER)
    health = await channels.add_health(server, names)
    if reflection:
        channels.add_reflection(server, names)
    address = channels.listen(server, "127.0.0.1", 0)
    await server.start()
    try:
        yield address, verifier, health
    finally:
        await server.stop(None)


async def test_typed_calls() -> None:
    async with serving() as (address, verifier, _), channels.open_channel(address) as channel:
        client = services.verifier_client(channel)
        sent = metadata.pairs(traceparent="00-abc")
        response = await client.GetInfo(convert.verifier_info_request(), metadata=sent, timeout=60)
        assert convert.verifier_info_from_proto(response) == INFO
        assert verifier.traceparent == "00-abc"


async def test_a_stream_of_many_sessions() -> None:
    async with serving() as (address, _, _), channels.open_channel(address) as channel:
        call = services.drafter_client(channel).Draft()
        commands = [CloseDraft(f"s-{index}", 1) for index in range(3)]
        await call.write(d.DraftRequest(commands=map(convert.command_to_proto, commands)))
        first = await call.read()
        assert isinstance(first, d.DraftResponse)
        events = [convert.event_from_proto(event) for event in first.events]
        assert [event.session_id for event in events if isinstance(event, Proposal)] == ["s-0", "s-1", "s-2"]
        await call.done_writing()
        last = await call.read()
        assert isinstance(last, d.DraftResponse)
        assert convert.event_from_proto(last.events[0]) == Draining(5)
        assert await call.read() is aio.EOF


async def test_errors_cross_the_wire() -> None:
    async with serving() as (address, _, _), channels.open_channel(address) as channel:
        client = services.verifier_client(channel)
        with pytest.raises(aio.AioRpcError) as caught:
            await client.Generate(v.VerifierGenerateRequest(session_id="a b")).read()
        error = errors.from_rpc_error(caught.value)
        assert isinstance(error, InvalidRequestError)
        assert error.field == "session_id"
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

        call = client.Resume(v.VerifierResumeRequest(session_id="s"))
        await call.read()  # an error after the first event, too
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
        busy = errors.from_rpc_error(caught.value)
        assert isinstance(busy, OverloadedError)
        assert busy.retry_after_s == 0.25


async def test_nobody_there() -> None:
    async with serving() as (address, _, _):
        pass
    async with channels.open_channel(address) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await services.verifier_client(channel).GetInfo(convert.verifier_info_request(), timeout=60)
    assert type(errors.from_rpc_error(caught.value)) is UnavailableError


async def test_messages_over_the_limit_are_refused_and_the_server_goes_on() -> None:
    limits = channels.Limits(max_message_bytes=1000)
    async with serving(limits=limits) as (address, _, _), channels.open_channel(address) as channel:
        client = services.verifier_client(channel)
        huge = v.VerifierGenerateRequest(session_id="s", token_ids=range(10_000))
        with pytest.raises(aio.AioRpcError) as caught:
            await client.Generate(huge).read()
        assert type(errors.from_rpc_error(caught.value)) is InvalidRequestError
        await client.GetInfo(convert.verifier_info_request(), timeout=60)


async def test_a_taken_port_and_a_bad_host_are_named() -> None:
    async with serving() as (address, _, _):
        server = channels.make_server()
        with pytest.raises(ConfigError, match=f"cannot listen on {address}"):
            channels.listen(server, "127.0.0.1", int(address.rpartition(":")[2]))
        with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1:1"):
            channels.listen(server, "203.0.113.1", 1)


async def test_health_follows_the_service() -> None:
    states = health_pb2.HealthCheckResponse
    async with serving() as (address, _, health), channels.open_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]

        async def state(name: str) -> int:
            return int((await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60)).status)

        assert await state("") == states.NOT_SERVING
        await health.set_serving(True)
        assert [await state(name) for name in ("", services.VERIFIER)] == [states.SERVING] * 2
        with pytest.raises(aio.AioRpcError) as caught:
            await state("outrider.v1.Nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await health.shut_down()
        await health.set_serving(True)  # too late: it stays down
        assert await state(services.DRAFTER) == states.NOT_SERVING


async def test_reflection_lists_the_services() -> None:
    """Asked by buf, a client that nobody here wrote."""
    buf = shutil.which("buf", path=str(Path(sys.executable).parent))
    assert buf is not None, "buf comes with the dev dependencies: run `make setup`"
    async with serving(reflection=True) as (address, _, _):
        base = [buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge"]
        listed = await _run(*base, "--list-methods", f"http://{address}")
        assert "outrider.v1.Verifier/Generate" in listed
        assert "grpc.health.v1.Health/Check" in listed
        answer = await _run(*base, "-d", "{}", f"http://{address}/{services.VERIFIER}/GetInfo")
        assert json.loads(answer)["model"]["modelName"] == "tiny"


async def _run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()
