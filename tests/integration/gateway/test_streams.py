"""Stop strings, cancellation, disconnects, slow readers and many streams."""

import asyncio
import contextlib
import json

import httpx
import pytest

from outrider.core.sessions import FinishReason
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.conftest import config_for, gateway_over, ids_of, say
from tests.integration.gateway.scripted_verifier import running
from tests.integration.gateway.test_chat import events_of

TEXT = "the quick brown fox jumps over the lazy dog, the end. " * 3
COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 200}


async def only_session(verifier):
    await verifier.started.wait()
    (session,) = verifier.sessions.values()
    return session


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_gives_the_same_in_any_grouping(client, stack, size, stream):
    stack.verifier.script = lambda _: say(TEXT, size)
    asked = COMPLETION | {"stop": ["lazy do", "never"], "return_token_ids": True}
    if stream:
        events = await events_of(client, asked, "/v1/completions")
        text = "".join(event["choices"][0]["text"] for event in events)
        ids = [token_id for event in events for token_id in event["choices"][0]["token_ids"]]
        finish = events[-1]["choices"][0]["finish_reason"]
    else:
        body = (await client.post("/v1/completions", json=asked)).json()
        choice = body["choices"][0]
        text, ids, finish = choice["text"], choice["token_ids"], choice["finish_reason"]
        assert body["usage"]["completion_tokens"] == len(ids)
        details = body["usage"]["completion_tokens_details"]
        drafted = sum(index % size < size - 1 for index in range(len(ids)))
        assert details["accepted_prediction_tokens"] == drafted
    assert text == "the quick brown fox jumps over the "
    assert ids == ids_of(TEXT)[: len(ids)]
    assert finish == "stop"
    session = await only_session(stack.verifier)
    await session.ended.wait()
    (cancel,) = session.cancels
    assert (cancel.keep_tokens, cancel.reason) == (len(ids), FinishReason.STOP)


async def test_a_verifier_that_does_not_confirm_a_stop_delays_the_end_only(client, stack, monkeypatch):
    monkeypatch.setattr("outrider.gateway.generation.SETTLE_S", 0.05)
    stack.verifier.confirms = False
    stack.verifier.script = lambda _: say(TEXT)
    body = (await client.post("/v1/completions", json=COMPLETION | {"stop": "fox"})).json()
    assert body["choices"][0]["text"] == "the quick brown "
    assert body["choices"][0]["finish_reason"] == "stop"
    session = await only_session(stack.verifier)
    await session.ended.wait()
    assert session.broken_off


async def test_text_that_may_be_a_stop_string_is_delivered_when_it_is_none(client, stack):
    stack.verifier.script = lambda _: say("the lazy do", 1)
    body = (await client.post("/v1/completions", json=COMPLETION | {"stop": "lazy dog"})).json()
    assert body["choices"][0]["text"] == "the lazy do"
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a_stop_token_is_the_verifiers_business(client, stack):
    ids = ids_of(TEXT)
    stack.verifier.script = lambda _: say(TEXT)
    body = (await client.post("/v1/completions", json=COMPLETION | {"stop_token_ids": [ids[4]]})).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == ids.index(ids[4])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_frees_the_session_at_once(stack, hold, stream):
    async def ask():
        async with httpx.AsyncClient(base_url=stack.http) as client:
            await client.post("/v1/completions", json=COMPLETION | {"stream": stream})

    asking = asyncio.create_task(ask())
    session = await only_session(stack.verifier)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await session.ended.wait()
    assert session.broken_off
    assert stack.verifier.running == 0


async def test_a_client_that_disconnects_before_admission_leaves_nothing(stack):
    body = json.dumps(COMPLETION).encode()
    host, port = stack.http.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body) + 1}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with httpx.AsyncClient(base_url=stack.http) as client:
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
    assert len(stack.verifier.sessions) == 1


async def test_cancelled_over_grpc_an_http_stream_finishes(client, stack, hold, generation):
    async with client.stream("POST", "/v1/completions", json=COMPLETION | {"stream": True}) as response:
        session = await only_session(stack.verifier)
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith("id: ")
        first = json.loads((await anext(lines)).removeprefix("data: "))
        answer = await generation.Cancel(pb.CancelRequest(generation_id=session.request.session_id))
        assert answer.found
        rest = [line async for line in lines if line]
    last = json.loads(rest[-2].removeprefix("data: "))
    assert first["choices"][0]["text"] == "the quick brown"[: len(first["choices"][0]["text"])]
    assert last["choices"][0]["finish_reason"] == "cancelled"
    assert session.cancels[0].reason is FinishReason.CANCELLED


async def test_a_reader_that_does_not_read_holds_up_nobody(model_folder, make_verifier):
    rounds, size = 500, 1000  # megabytes: more than sockets buffer
    verifier = make_verifier(context_length=2 * rounds * size)
    verifier.script = lambda _: [([300] * size, 0)] * rounds
    async with (
        running(verifier) as address,
        gateway_over(config_for(model_folder, address)) as (addresses, _, _),
        httpx.AsyncClient(base_url=addresses["http"], timeout=60) as client,
    ):
        asked = {"prompt": "hello", "max_tokens": rounds * size, "stream": True, "return_token_ids": True}
        body = json.dumps(asked).encode()
        host, port = addresses["http"].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)  # pauses soon
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        await verifier.started.wait()
        for _ in range(5):
            assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200
        received = 0
        tail = b""
        while b"[DONE]" not in tail:
            part = await reader.read(65536)
            received += part.count(b'"text":')
            tail = tail[-16:] + part
        assert received >= rounds
        writer.close()
        await writer.wait_closed()


async def test_a_hundred_streams_at_once(stack):
    stack.verifier.script = lambda request: say(TEXT[: 20 + request.prompt[0]], 2)

    async def one(client, number):
        asked = {"model": "tiny", "prompt": [number], "max_tokens": 200}
        events = await events_of(client, asked, "/v1/completions")
        return "".join(event["choices"][0]["text"] for event in events)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=stack.http, limits=limits, timeout=60) as client:
        texts = await asyncio.gather(*(one(client, number) for number in range(100)))
    assert texts == [TEXT[: 20 + number] for number in range(100)]
    assert stack.verifier.running == 0


async def test_two_hundred_cancelled_streams_leave_nothing(stack, hold):
    async def one(client, number):
        asked = COMPLETION | {"stream": True}
        async with client.stream("POST", "/v1/completions", json=asked) as response:
            lines = response.aiter_lines()
            for _ in range(number % 2):
                await anext(lines)

    async with httpx.AsyncClient(base_url=stack.http, timeout=60) as client:
        await asyncio.gather(*(one(client, number) for number in range(200)))
        for session in list(stack.verifier.sessions.values()):
            await session.ended.wait()
        page = (await client.get("/metrics")).text
    assert len(stack.verifier.sessions) == 200
    assert stack.verifier.running == 0
    assert 'outrider_open_streams{model_name="tiny"} 0.0' in page
