"""HTTP connections that are slow, silent, too many or too large, over real sockets."""

import asyncio
import socket
import time

import httpx

from outrider.gateway.http_protocol import MAX_HEAD_BYTES
from tests.integration.gateway.bare_http import serving

HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PATIENCE_S = 60


async def connect(bare):
    return await asyncio.open_connection("127.0.0.1", bare.port)


async def rest(reader):
    """All that comes until the server closes; a reset is an end too."""
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    except ConnectionResetError:
        return b""


async def drip(writer, data, pause_s=0.02):
    """Send `data` for ever, piece by piece, until the other side has had enough."""
    try:
        while True:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(pause_s)
    except (ConnectionError, RuntimeError):
        pass


async def dripping(bare, begin, data):
    """What the server answers before it closes a connection that never stops sending."""
    reader, writer = await connect(bare)
    writer.write(begin)
    sending = asyncio.create_task(drip(writer, data))
    try:
        return await rest(reader)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def test_a_silent_connection_is_closed():
    async with serving(head_timeout_s=0.2) as bare:
        reader, writer = await connect(bare)
        assert await rest(reader) == b""
        writer.close()


async def test_a_head_that_comes_a_byte_at_a_time_is_not_waited_for():
    async with serving(head_timeout_s=0.3) as bare:
        assert await dripping(bare, HEAD + b"X-Slow: ", b"a") == b""


async def test_a_kept_connection_has_as_long_for_its_next_head():
    async with serving(head_timeout_s=0.3) as bare:
        answer = await dripping(bare, HEAD + b"Content-Length: 2\r\n\r\n{}POST /ec", b"h")
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b'{"length":2}')


async def test_a_body_that_comes_slowly_is_408_and_its_connection_is_closed():
    async with serving(head_timeout_s=0.3, body_timeout_s=0.3) as bare:
        answer = await dripping(bare, HEAD + b"Content-Length: 1000000\r\n\r\n", b"x")
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"type":"invalid_request_error"' in answer and b"did not come within 0.3 s" in answer


async def test_a_body_that_nobody_waits_for_keeps_no_connection():
    begin = HEAD.replace(b"/echo", b"/deaf") + b"Content-Length: 1000000\r\n\r\n"
    async with serving(head_timeout_s=0.3) as bare:
        assert (await dripping(bare, begin, b"x")).startswith(b"HTTP/1.1 200")


async def test_an_answer_may_take_longer_than_any_of_these():
    async with (
        serving(head_timeout_s=0.1, body_timeout_s=0.1) as bare,
        httpx.AsyncClient(base_url=bare.address, timeout=PATIENCE_S) as client,
        client.stream("GET", "/slow") as answer,
    ):
        parts = answer.aiter_bytes()
        assert await anext(parts) == b"first,"
        began = time.monotonic()
        while time.monotonic() < began + 0.3:
            await asyncio.sleep(0.05)
        bare.release.set()
        assert b"".join([part async for part in parts]) == b"last"


async def test_a_client_that_stops_reading_loses_its_connection():
    async with serving(unread_s=0.2) as bare:
        with socket.create_connection(("127.0.0.1", bare.port)) as client:
            client.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                await bare.gave_up.wait()


async def test_a_client_that_reads_slowly_keeps_its_connection():
    """Each piece takes it longer than `unread_s` in all, but there is progress."""
    async with serving(unread_s=1.0) as bare:
        reader, writer = await connect(bare)
        writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        began = time.monotonic()
        while time.monotonic() < began + 2.5:
            assert await reader.readexactly(1_000_000)
            await asyncio.sleep(0.05)
        assert not bare.gave_up.is_set()
        writer.close()


async def test_more_connections_than_allowed_are_closed_at_once_and_others_go_on():
    async with serving(max_connections=2) as bare:
        first = await connect(bare)
        second = await connect(bare)
        extra_reader, extra_writer = await connect(bare)
        assert await rest(extra_reader) == b""
        for reader, writer in (first, second):
            writer.write(HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}")
            assert (await rest(reader)).endswith(b'{"length":2}')
            writer.close()
        reader, writer = await connect(bare)
        writer.write(HEAD + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        assert (await rest(reader)).endswith(b'{"length":0}')
        writer.close()
        extra_writer.close()


async def test_a_head_without_end_is_refused():
    async with serving() as bare:
        reader, writer = await connect(bare)
        sending = asyncio.create_task(drip(writer, b"X-Long: " + b"a" * 8000 + b"\r\n", 0))
        writer.write(HEAD)
        assert (await rest(reader))[:12] in (b"", b"HTTP/1.1 400")
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def test_a_long_head_within_the_bound_is_read():
    async with serving() as bare, httpx.AsyncClient(base_url=bare.address) as client:
        answer = await client.post("/echo", headers={"x-long": "a" * (MAX_HEAD_BYTES // 2)}, content=b"{}")
        assert answer.json() == {"length": 2}


async def test_an_upgrade_to_websockets_is_ignored():
    async with serving() as bare, httpx.AsyncClient(base_url=bare.address) as client:
        headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x"}
        assert (await client.post("/echo", headers=headers, content=b"{}")).status_code == 200
