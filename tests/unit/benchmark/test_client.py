"""The client reads real HTTP streams, and tells what broke when one breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outrider.benchmark.client import Client, RequestOptions, request_body, sse_events
from outrider.benchmark.measure import Runner
from outrider.benchmark.workload import Block, Prompt
from outrider.core.errors import InternalError, OutriderError, ProtocolError, UnavailableError

PROMPT = Prompt("1", "qa", "Why?")
OPTIONS = RequestOptions(max_tokens=8)


class ScriptedServer:
    """An HTTP server that answers every POST with the same bytes and counts what is in flight."""

    def __init__(self, pieces: Sequence[bytes], status: str = "200 OK") -> None:
        self.pieces, self.status = pieces, status
        self.bodies: list[dict[str, Any]] = []
        self.in_flight = self.most_in_flight = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        writer.write(f"HTTP/1.1 {self.status}\r\nConnection: close\r\n\r\n".encode())
        for piece in self.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        self.in_flight -= 1
        writer.close()
        await writer.wait_closed()


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def tokens(*ids: int, text: str = "") -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "token_ids": list(ids)}])


ANSWER = (
    event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]),
    b": a comment\n\n",
    tokens(5, text="Be"),
    tokens(6, 7, text="cause"),
    event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]),
    event(
        choices=[],
        usage={"prompt_tokens": 4, "completion_tokens": 3},
        speculation_stats={"rounds": 2, "draft_tokens": 4, "accepted_tokens": 1, "missed": 0},
    ),
    b"data: [DONE]\n\n",
)


async def ask(pieces: Sequence[bytes], status: str = "200 OK") -> Any:
    async with ScriptedServer(pieces, status).running() as url, Client(url) as client:
        return await client.generate("m", PROMPT, "off", OPTIONS)


async def test_a_stream_becomes_an_answer() -> None:
    answer = await ask(ANSWER)
    assert (answer.token_ids, answer.text, answer.finish_reason) == ([5, 6, 7], "Because", "stop")
    assert [count for _, count in answer.arrivals] == [1, 2]
    assert (answer.prompt_tokens, answer.rounds, answer.drafted, answer.accepted) == (4, 2, 4, 1)
    assert answer.sent <= answer.arrivals[0][0] <= answer.arrivals[1][0] <= answer.done


async def test_events_may_be_cut_anywhere() -> None:
    whole = b"".join(ANSWER)
    answer = await ask([whole[start : start + 7] for start in range(0, len(whole), 7)])
    assert answer.token_ids == [5, 6, 7]


async def test_a_refusal_shows_status_and_reason() -> None:
    with pytest.raises(InternalError, match=r"400.*temperature"):
        await ask([b'{"error": {"message": "temperature is wrong"}}'], "400 Bad Request")


async def test_an_error_in_the_stream_is_raised() -> None:
    with pytest.raises(OutriderError, match="verifier is away"):
        await ask([tokens(5), event(error={"message": "the verifier is away"})])


async def test_a_stream_cut_short_is_an_error() -> None:
    with pytest.raises(ProtocolError, match=r"without \[DONE\]"):
        await ask(ANSWER[:4])


async def test_nobody_there_is_told() -> None:
    async with ScriptedServer(ANSWER).running() as url:
        pass
    async with Client(url) as client:
        with pytest.raises(UnavailableError):
            await client.generate("m", PROMPT, "off", OPTIONS)
        with pytest.raises(UnavailableError):
            await client.model()


async def test_data_of_several_lines_is_joined() -> None:
    async def lines() -> AsyncIterator[str]:
        for line in ("event: x", "data: a", "data:b", "", "", ":c", "data: last", ""):
            yield line

    assert [data async for data in sse_events(lines())] == ["a\nb", "last"]


def test_off_asks_for_no_speculation_and_a_drafter_is_named() -> None:
    off = request_body("m", PROMPT, "off", OPTIONS)
    assert off["speculation"]["enabled"] is False
    on = request_body("m", PROMPT, "ngram", RequestOptions(8, max_draft_tokens=5, completions=True))
    assert (
        on["speculation"] | {"enabled": True, "drafter": "ngram", "max_draft_tokens": 5} == on["speculation"]
    )
    assert on["prompt"] == "Why?"
    assert "messages" not in on


async def test_a_closed_loop_never_exceeds_its_concurrency() -> None:
    server = ScriptedServer(ANSWER)
    block = Block(0, "ngram", tuple(Prompt(str(number), "qa", f"{number}") for number in range(9)))
    seen: list[Block] = []
    async with server.running() as url, Client(url) as client:
        samples = await Runner(client, "m", OPTIONS, answered=seen.append).run(block, 2)
    assert server.most_in_flight <= 2
    assert len(seen) == 9
    assert [sample.prompt for sample in samples] == list(block.prompts)
    assert {body["speculation"]["drafter"] for body in server.bodies} == {"ngram"}


async def test_a_failure_ends_the_run_with_its_own_error() -> None:
    block = Block(0, "off", tuple(Prompt(str(number), "qa", f"{number}") for number in range(4)))
    async with ScriptedServer(ANSWER, "503 Service Unavailable").running() as url, Client(url) as client:
        with pytest.raises(InternalError, match="503"):
            await Runner(client, "m", OPTIONS).run(block, 4)


async def test_an_open_loop_sends_all_and_counts_from_when_it_was_due() -> None:
    block = Block(0, "off", tuple(Prompt(str(number), "qa", f"{number}") for number in range(20)))
    async with ScriptedServer(ANSWER).running() as url, Client(url) as client:
        samples = await Runner(client, "m", OPTIONS, rate=500.0).run(block, 20)
    sent = [sample.answer.sent for sample in samples]
    assert sent == sorted(sent)
    assert all(sample.answer.arrivals[0][0] >= sample.answer.sent for sample in samples)
