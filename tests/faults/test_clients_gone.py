"""Clients that go away leave nothing behind: sessions, KV blocks and drafter state are freed."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from typing import Any

import pytest

from outrider.wire.v1 import generation_pb2
from tests.faults.conftest import Expect
from tests.stack import Stack, total, wait_until
from tests.traffic import Generated, ask, connected, generate, take

DRAFTERS = ("twin", "other", "lookup")
STREAMS = 200


def base_line(stack: Stack) -> dict[str, float]:
    """What must be the same when nothing runs."""
    verifier = stack.metrics("verifier")
    state = {
        "open streams": total(stack.metrics("gateway"), "outrider_open_streams"),
        "running": total(verifier, "outrider_num_requests_running"),
        "waiting": total(verifier, "outrider_num_requests_waiting"),
        "kv": total(verifier, "outrider_kv_cache_usage_perc"),
    }
    for name in DRAFTERS:
        own = stack.metrics(name)
        state[f"{name} sessions"] = total(own, "outrider_drafter_sessions")
        state[f"{name} queued"] = total(own, "outrider_drafter_queued")
        state[f"{name} kv"] = total(own, "outrider_drafter_kv_cache_usage_perc")
    return state


def assert_returns_to(stack: Stack, before: dict[str, float]) -> None:
    """Everything is freed, soon."""
    assert before == dict.fromkeys(before, 0.0), "something ran before"
    wait_until(lambda: base_line(stack) == before, f"all is as before; now: {base_line(stack)}")


async def cancel_after(stub: Any, request: Any, deltas: int, by_rpc: bool) -> list[int]:
    """Read so many deltas, then hang up (or ask for the end); the token ids seen."""
    seen = Generated()
    call = stub.Generate(request, timeout=120)
    async for response in call:
        take(seen, response)
        if seen.deltas >= deltas and seen.finished is None:
            if not by_rpc:
                call.cancel()
                break
            await stub.Cancel(generation_pb2.CancelRequest(generation_id=seen.generation_id), timeout=20)
            by_rpc, deltas = False, 1 << 30  # read on to the end
    return seen.token_ids


async def test_200_cancelled_streams_leave_nothing(stack: Stack, expect: Expect) -> None:
    request: dict[str, Any] = {"max_tokens": 500, "temperature": 1.0}
    expected = await expect(**request)
    before = base_line(stack)
    dice = random.Random(11)
    slots = asyncio.Semaphore(40)

    async with connected(stack.grpc) as stub:

        async def one(number: int) -> None:
            async with slots:
                wanted = ask(drafter=DRAFTERS[number % 3], **request)
                ids = await cancel_after(stub, wanted, dice.randrange(12), by_rpc=number % 5 == 0)
                assert ids == expected[: len(ids)]
                assert len(ids) < 500, "it was over before it was cancelled"

        await asyncio.gather(*(one(number) for number in range(STREAMS)))
        assert_returns_to(stack, before)
        after = await generate(stub, ask(drafter="twin", **request))
    assert after.token_ids == expected
    assert_returns_to(stack, before)


@pytest.mark.parametrize("abrupt", [False, True])
def test_http_client_that_disconnects_frees_all(stack: Stack, abrupt: bool) -> None:
    before = base_line(stack)
    host, port = stack.http.removeprefix("http://").split(":")
    body = json.dumps(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "The quick brown fox"}],
            "max_tokens": 1500,
            "stream": True,
            "ignore_eos": True,
            "seed": 3,
        }
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        received = b""
        while received.count(b"data: ") < 3:
            piece = client.recv(4096)
            assert piece, received
            received += piece
        assert received.startswith(b"HTTP/1.1 200"), received
        if abrupt:  # a reset instead of an orderly end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert_returns_to(stack, before)
