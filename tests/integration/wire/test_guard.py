"""Bytes that are no message, and defects of servicers, over real sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from outrider.core.errors import InvalidRequestError, OverloadedError
from outrider.wire import channels, errors, guard, services
from outrider.wire.v1 import verifier_pb2 as v

BAD_UTF8 = b"\x0a\x02\xff\xfe"  # session_id
TRUNCATED = b"\x0a\x50s"
METHODS = [("GetInfo", "unary_unary"), ("Generate", "unary_stream"), ("Resume", "unary_stream")]


class Broken(services.VerifierService):
    """A defect in every method, of every kind of method."""

    async def GetInfo(self, request: Any, context: Any) -> v.VerifierGetInfoResponse:
        raise KeyError("secret prompt")

    async def Generate(self, request: Any, context: Any) -> None:
        await context.write(v.VerifierGenerateResponse())
        raise KeyError("secret prompt")

    async def Resume(self, request: Any, context: Any) -> AsyncIterator[v.VerifierResumeResponse]:
        yield v.VerifierResumeResponse()
        raise KeyError("secret prompt")

    async def Cancel(self, request: Any, context: Any) -> v.VerifierCancelResponse:
        raise OverloadedError("full", retry_after_s=2.0)


@asynccontextmanager
async def broken() -> AsyncIterator[aio.Channel]:
    server = channels.make_server()
    services.add_verifier(server, Broken())
    address = channels.listen(server, "127.0.0.1", 0)
    await server.start()
    try:
        async with channels.open_channel(address) as channel:
            yield channel
    finally:
        await server.stop(None)


async def ending(channel: aio.Channel, method: str, kind: str, data: bytes) -> aio.AioRpcError:
    """How a call with these bytes ends."""
    call = getattr(channel, kind)(f"/{services.VERIFIER}/{method}")(data, timeout=60)
    with pytest.raises(aio.AioRpcError) as caught:
        if kind == "unary_unary":
            await call
        else:
            [answer async for answer in call]
    return caught.value


@pytest.mark.parametrize("data", [BAD_UTF8, TRUNCATED])
@pytest.mark.parametrize(("method", "kind"), [("Cancel", "unary_unary"), *METHODS[1:]])
async def test_bytes_that_are_no_message(method: str, kind: str, data: bytes) -> None:
    async with broken() as channel:
        ended = await ending(channel, method, kind, data)
    assert ended.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = errors.from_rpc_error(ended)
    assert type(error) is InvalidRequestError
    assert "cannot be read" in str(error)


@pytest.mark.parametrize(("method", "kind"), METHODS)
async def test_a_defect_is_internal_and_its_text_stays_here(
    caplog: pytest.LogCaptureFixture, method: str, kind: str
) -> None:
    with caplog.at_level(logging.ERROR, "outrider.wire.guard"):
        async with broken() as channel:
            ended = await ending(channel, method, kind, b"")
    assert (ended.code(), ended.details()) == (grpc.StatusCode.INTERNAL, "internal error")
    (record,) = [one for one in caplog.records if one.name == "outrider.wire.guard"]
    assert method in record.getMessage()
    assert record.exc_info


async def test_an_error_of_ours_keeps_its_status(caplog: pytest.LogCaptureFixture) -> None:
    async with broken() as channel:
        ended = await ending(channel, "Cancel", "unary_unary", b"")
    error = errors.from_rpc_error(ended)
    assert isinstance(error, OverloadedError) and error.retry_after_s == 2.0
    assert not caplog.records


async def test_a_link_that_breaks_while_something_is_sent_is_no_defect(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(self: Broken, request: Any, context: Any) -> None:
        raise aio.InternalError("Failed 'execute_batch'")  # as gRPC words it

    monkeypatch.setattr(Broken, "Generate", gone)
    with caplog.at_level(logging.INFO, "outrider.wire.guard"):
        async with broken() as channel:
            await ending(channel, "Generate", "unary_stream", b"")
    assert not caplog.records


async def test_an_unknown_method_is_unimplemented() -> None:
    async with broken() as channel:
        ended = await ending(channel, "Nonsense", "unary_unary", b"")
    assert ended.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["GetInfo", "Generate", "Resume", "Cancel"])
async def test_a_request_that_does_not_come_ends_its_call(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "REQUEST_TIMEOUT_S", 0.2)
    async with broken() as channel:
        call = channel.stream_stream(f"/{services.VERIFIER}/{method}")(_nothing())
        async with asyncio.timeout(30):
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "did not come within 0.2 s" in await call.details()


async def test_a_call_without_a_request_is_refused() -> None:
    async with broken() as channel:
        call = channel.stream_stream(f"/{services.VERIFIER}/Cancel")(iter(()))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "has no request" in await call.details()


async def _nothing() -> AsyncIterator[bytes]:
    await asyncio.sleep(600)
    yield b""
