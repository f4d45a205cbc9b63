"""The benchmark's client: Outrider's public OpenAI API over HTTP, streaming.

Two extensions of that API are used: `return_token_ids` (each chunk also carries the ids) and
`speculation` (whether and how to speculate; with `stats`, the last chunk tells what came of it).
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from outrider.benchmark.workload import OFF, Prompt
from outrider.core.errors import InternalError, OutriderError, ProtocolError, UnavailableError


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What is the same for all requests of a run."""

    max_tokens: int
    temperature: float = 0.0
    seed: int = 1
    completions: bool = False  # raw completion instead of chat
    max_draft_tokens: int | None = None
    ignore_eos: bool = False
    top_p: float = 1.0


@dataclass(slots=True)
class Answer:
    """One answered request. Times are seconds on the client's monotonic clock."""

    sent: float
    done: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (when, tokens) per chunk with tokens
    text: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    missed: int = 0
    accepted_by_round: dict[int, int] = field(default_factory=dict)  # accepted in a round -> how many rounds


def request_body(model: str, prompt: Prompt, drafter: str, options: RequestOptions) -> dict[str, Any]:
    """The JSON body of one request."""
    speculation: dict[str, Any] = {"enabled": drafter != OFF, "stats": True}
    if drafter != OFF:
        speculation["drafter"] = drafter
        if options.max_draft_tokens is not None:
            speculation["max_draft_tokens"] = options.max_draft_tokens
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "speculation": speculation,
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.completions:
        body["prompt"] = prompt.text
    else:
        body["messages"] = [{"role": "user", "content": prompt.text}]
    return body


async def sse_events(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """The `data` of each server-sent event (WHATWG HTML, section 9.2), without event types and ids."""
    data: list[str] = []
    async for line in lines:
        if not line:
            if data:
                yield "\n".join(data)
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        # Anything else is a comment (a line that starts with a colon) or a field without use here.


class Client:
    """Talks to one gateway."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 600.0,
        connections: int = 64,
        api_key: str = "",
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            verify=verify,
            trust_env=False,  # a proxy of the environment must not stand between client and gateway
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def model(self) -> str:
        """Name of the first model served.

        Raises:
            UnavailableError: nobody answers there.
        """
        try:
            response = await self._http.get("/v1/models")
        except httpx.TransportError as error:
            raise UnavailableError(f"no answer from {self._http.base_url}: {error!r}") from error
        if response.status_code != 200:
            raise UnavailableError(f"GET /v1/models answered {response.status_code}: {response.text[:300]}")
        return str(response.json()["data"][0]["id"])

    async def generate(
        self,
        model: str,
        prompt: Prompt,
        drafter: str,
        options: RequestOptions,
        *,
        scheduled: float | None = None,
    ) -> Answer:
        """Send one request and read its stream to the end.

        `scheduled`: when an open loop meant to send it; delays of the client then count as
        latency instead of vanishing (no coordinated omission).

        Raises:
            OutriderError: the request failed, before or in the stream.
        """
        path = "/v1/completions" if options.completions else "/v1/chat/completions"
        answer = Answer(time.perf_counter() if scheduled is None else scheduled)
        body = request_body(model, prompt, drafter, options)
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise InternalError(f"prompt {prompt.prompt_id}: {response.status_code}: {text[:500]}")
                await _read(response.aiter_lines(), answer)
        except httpx.TransportError as error:
            raise UnavailableError(f"prompt {prompt.prompt_id}: the connection broke: {error!r}") from error
        return answer


async def _read(lines: AsyncIterator[str], answer: Answer) -> None:
    async for data in sse_events(lines):
        if data == "[DONE]":
            break
        take_chunk(answer, data, time.perf_counter())
    else:
        raise ProtocolError("the stream ended without [DONE]")
    answer.done = time.perf_counter()


def take_chunk(answer: Answer, data: str, now: float) -> None:
    """Add one chunk of the stream, which arrived at `now`, to the answer.

    Raises:
        OutriderError: the chunk carries an error.
        ProtocolError: the chunk is not JSON.
    """
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise ProtocolError(f"a chunk of the stream is not JSON: {data[:200]!r}") from error
    if "error" in chunk:
        raise OutriderError(f"the server broke the stream off: {chunk['error']}")
    for choice in chunk.get("choices", ()):
        token_ids = choice.get("token_ids") or ()
        if token_ids:
            answer.token_ids.extend(token_ids)
            answer.arrivals.append((now, len(token_ids)))
        answer.text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        histogram = (choice.get("speculative_decoding_stats") or {}).get("acceptance_histogram") or {}
        for accepted, rounds in histogram.items():
            place = int(accepted)
            answer.accepted_by_round[place] = answer.accepted_by_round.get(place, 0) + int(rounds)
    if usage := chunk.get("usage"):
        answer.prompt_tokens = usage["prompt_tokens"]
    if stats := chunk.get("speculation_stats"):
        _take_stats(answer, stats)


def _take_stats(answer: Answer, stats: Mapping[str, Any]) -> None:
    answer.rounds = int(stats.get("rounds", 0))
    answer.drafted = int(stats.get("draft_tokens", 0))
    answer.accepted = int(stats.get("accepted_tokens", 0))
    answer.missed = int(stats.get("missed", 0))
