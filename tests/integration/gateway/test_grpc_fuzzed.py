"""Anything at all, sent to a real gateway's gRPC API: an answer or a documented refusal, never a defect."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.wire import convert
from outrider.wire.v1 import generation_pb2 as pb
from outrider.wire.v1 import generation_pb2_grpc
from tests.integration.gateway.conftest import config_for, gateway_over
from tests.integration.gateway.scripted_verifier import running
from tests.unit.wire.garbage import garbage
from tests.unit.wire.strategies import GENERATION_REQUESTS

ALLOWED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def channel(model_folder: Any, make_verifier: Any) -> Iterator[grpc.Channel]:
    """To a gateway in a thread of its own, whose verifier says nothing and finishes."""
    verifier = make_verifier()
    verifier.script = lambda _: []

    async def serve(ready: asyncio.Future[str], stop: asyncio.Event) -> None:
        async with running(verifier) as address, gateway_over(config_for(model_folder, address)) as up:
            ready.set_result(up[0]["grpc"])
            await stop.wait()

    with _in_thread(serve) as address, grpc.insecure_channel(address) as open_channel:
        yield open_channel


@contextmanager
def _in_thread(serve: Any) -> Iterator[str]:
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    ready: asyncio.Future[str] = loop.create_future()
    listening = threading.Event()
    ready.add_done_callback(lambda _: listening.set())

    def run() -> None:
        loop.run_until_complete(serve(ready, stop))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert listening.wait(60)
        yield ready.result()
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)


def outcome(call: Any) -> tuple[grpc.StatusCode, str, int]:
    """How a stream ended: code, details, and how many messages came before."""
    events = 0
    try:
        for _ in call:
            events += 1
    except grpc.RpcError:
        pass
    return call.code(), call.details(), events


@SETTINGS
@given(request=garbage(pb.GenerateRequest) | st.binary(max_size=80))
def test_garbage(channel: grpc.Channel, request: Any) -> None:
    data = request if isinstance(request, bytes) else request.SerializeToString()
    call = channel.unary_stream("/outrider.v1.Generation/Generate")(data, timeout=60)
    code, details, events = outcome(call)
    if code is not grpc.StatusCode.OK:
        assert code in ALLOWED, details
        assert details
        assert not events


@SETTINGS
@given(request=GENERATION_REQUESTS)
def test_valid_requests_meet_only_the_models_own_bounds(channel: grpc.Channel, request: Any) -> None:
    stub = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
    message = convert.generation_request_to_proto(request)
    code, details, _ = outcome(stub.Generate(message, timeout=60))
    assert code is grpc.StatusCode.OK or code in ALLOWED, details


@pytest.mark.parametrize("method", ["Cancel", "ListModels"])
@SETTINGS
@given(data=st.binary(max_size=40))
def test_garbage_to_other_methods(channel: grpc.Channel, method: str, data: bytes) -> None:
    try:
        channel.unary_unary(f"/outrider.v1.Generation/{method}")(data, timeout=60)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error.details()  # type: ignore[attr-defined]


def test_the_gateway_goes_on(channel: grpc.Channel) -> None:
    stub = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
    events = list(stub.Generate(pb.GenerateRequest(prompt="hello"), timeout=60))
    assert [event.WhichOneof("event") for event in events] == ["started", "finished"]
