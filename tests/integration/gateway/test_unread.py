"""Clients that stay but stop reading, over real sockets: their sessions are parked, and hold nothing."""

import asyncio
import json
import socket

import grpc
import pytest

from outrider.core.errors import SessionParkedError
from outrider.wire import services
from tests.integration.gateway.conftest import config_for, gateway_over
from tests.integration.gateway.scripted_verifier import Break, running
from tests.integration.gateway.test_grpc_api import request

LONG = "word " * 40


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_grpc_client_that_stops_reading_has_its_session_parked(model_folder, make_verifier):
    narrow = [("grpc.http2.lookahead_bytes", 64), ("grpc.http2.bdp_probe", 0)]  # a few events
    verifier = make_verifier(LONG, size=1)
    async with (
        running(verifier) as address,
        gateway_over(config_for(model_folder, address, unread_s=0.1)) as (addresses, _, _),
        grpc.aio.insecure_channel(addresses["grpc"], options=narrow) as channel,
    ):
        call = services.generation_client(channel).Generate(request())
        await call.initial_metadata()
        await until(lambda: verifier.parked)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [event async for event in call]
        assert caught.value.code() is grpc.StatusCode.CANCELLED
        assert "has read nothing for 0.1 s" in caught.value.details()


async def test_a_session_that_was_parked_for_a_slow_client_goes_on_where_it_was(model_folder, make_verifier):
    parked = SessionParkedError("the session is parked: it can be resumed")
    verifier = make_verifier(LONG, size=1)
    verifier.breaks = [Break(3, parked)]
    async with (
        running(verifier) as address,
        gateway_over(config_for(model_folder, address)) as (addresses, _, _),
        grpc.aio.insecure_channel(addresses["grpc"]) as channel,
    ):
        generation = services.generation_client(channel)
        events = [event async for event in generation.Generate(request())]
        undisturbed = [event async for event in generation.Generate(request())]
        assert [event.delta.text for event in events[1:-1]] == [
            event.delta.text for event in undisturbed[1:-1]
        ]
        assert len(verifier.resumed) == 1


async def test_an_http_client_that_stops_reading_has_all_its_sessions_parked(model_folder, make_verifier):
    choices = 16  # with their log-probabilities more than any socket's buffers hold
    verifier = make_verifier(LONG, size=1)
    body = json.dumps(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "n": choices,
            "logprobs": True,
            "top_logprobs": 20,
        }
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    async with (
        running(verifier) as address,
        gateway_over(config_for(model_folder, address, unread_s=0.3)) as (addresses, _, _),
    ):
        host, port = addresses["http"].removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(head.encode() + body)
            await until(lambda: len(verifier.parked) == choices)
        await until(lambda: not verifier.running)
