"""Clients of the public gRPC API for end-to-end and fault tests, strict about what they receive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from outrider.wire.v1 import common_pb2, generation_pb2, generation_pb2_grpc

AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What a stream ends with when its gateway dies or stops. Calls that a server which stops had not yet taken
up are cancelled by grpc itself."""
PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown fox"


class LeaveError(Exception):
    """Raised by what watches a stream: the client hangs up, and comes back to the next gateway."""


@dataclass
class Generated:
    """One generation as its client saw it."""

    generation_id: str = ""
    seed: int = 0
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    accepted: int = 0
    deltas: int = 0
    finished: Any = None  # GenerationFinished
    logprobs: list[Any] = field(default_factory=list)  # TokenLogprobs
    times: list[float] = field(default_factory=list)  # when each delta came
    resumes: int = 0

    @property
    def stats(self) -> Any:
        """SpeculationStats of the finished generation."""
        return self.finished.speculation


def ask(
    prompt: str = PROMPT,
    *,
    drafter: str | None = "",
    max_tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 7,
    ignore_eos: bool = True,
    draft_tokens: int | None = None,
    **more: Any,
) -> generation_pb2.GenerateRequest:
    """A request. `drafter`: None switches speculation off, "" leaves the choice to the verifier."""
    speculation = common_pb2.SpeculationParams(enabled=drafter is not None, drafter=drafter or "")
    if draft_tokens is not None:
        speculation.max_draft_tokens = draft_tokens
    return generation_pb2.GenerateRequest(
        prompt=prompt,
        sampling=common_pb2.SamplingParams(temperature=temperature, seed=seed),
        stop=common_pb2.StopParams(max_tokens=max_tokens, ignore_eos=ignore_eos),
        speculation=speculation,
        **more,
    )


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Any]:
    """A Generation stub for a gateway."""
    async with aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        yield generation_pb2_grpc.GenerationStub(channel)


async def generate(
    stub: Any,
    request: generation_pb2.GenerateRequest,
    *,
    on_delta: Callable[[Generated], None] | None = None,
    timeout_s: float = 120,
) -> Generated:
    """Run a generation to its end, checking that every token comes exactly once and in order."""
    seen = Generated()
    async for response in stub.Generate(request, timeout=timeout_s):
        take(seen, response)
        if on_delta is not None and response.WhichOneof("event") == "delta":
            on_delta(seen)
    assert seen.finished is not None, "the stream ended without `finished`"
    assert seen.finished.usage.completion_tokens == len(seen.token_ids)
    assert seen.stats.accepted_tokens <= seen.stats.draft_tokens
    return seen


def take(seen: Generated, response: generation_pb2.GenerateResponse | generation_pb2.ResumeResponse) -> None:
    """Add one event, checking its place in the stream. A resumed stream says `started` once more."""
    event = response.WhichOneof("event")
    assert seen.finished is None, "an event after `finished`"
    if event == "started":
        started = response.started
        assert seen.generation_id in ("", started.generation_id), "another generation"
        assert seen.seed in (0, started.seed), "another seed"
        seen.generation_id, seen.seed = started.generation_id, started.seed
    elif event == "delta":
        assert seen.generation_id, "a delta before `started`"
        assert response.delta.first_token == len(seen.token_ids), "tokens lost or repeated"
        seen.token_ids += response.delta.token_ids
        seen.text += response.delta.text
        seen.accepted += response.delta.accepted
        seen.logprobs += response.delta.logprobs
        seen.times.append(time.monotonic())
        seen.deltas += 1
    else:
        assert event == "finished"
        seen.finished = response.finished


async def persist(
    addresses: Sequence[str],
    request: generation_pb2.GenerateRequest,
    *,
    on_delta: Callable[[Generated], None] | None = None,
    idle_s: float = 90.0,
    patience_s: float = 120.0,
    seen: Generated | None = None,
) -> Generated:
    """Run a generation to its end, resuming it at the next gateway whenever its stream breaks.

    Args:
        addresses: of the gateways, in the order in which they are tried.
        request: what to generate.
        on_delta: called after each delta.
        idle_s: a stream on which nothing came for so long counts as broken.
        patience_s: for how long it may go on without any event, over all gateways.
        seen: filled as it goes; new by default.
    """
    seen = seen if seen is not None else Generated()
    attempt, last = 0, time.monotonic()
    while seen.finished is None:
        before = seen.deltas
        try:
            async with connected(addresses[attempt % len(addresses)]) as stub:
                async for response in _spoken(_opened(stub, request, seen), idle_s):
                    take(seen, response)
                    last = time.monotonic()
                    if on_delta is not None and seen.deltas > before:
                        before = seen.deltas
                        on_delta(seen)
        except (aio.AioRpcError, TimeoutError, LeaveError) as error:
            if isinstance(error, aio.AioRpcError) and error.code() not in AWAY:
                raise
            assert time.monotonic() - last < patience_s, f"nothing for {patience_s} s: {error}"
            await asyncio.sleep(0.1)
            attempt += 1
        else:
            assert seen.finished is not None, "the stream ended without `finished`"
    assert seen.finished.usage.completion_tokens == len(seen.token_ids)
    return seen


def _opened(stub: Any, request: generation_pb2.GenerateRequest, seen: Generated) -> Any:
    if not seen.generation_id:
        return stub.Generate(request, timeout=600)
    seen.resumes += 1
    return stub.Resume(
        generation_pb2.ResumeRequest(generation_id=seen.generation_id, from_token=len(seen.token_ids)),
        timeout=600,
    )


async def _spoken(call: Any, idle_s: float) -> AsyncIterator[Any]:
    """The events of a call; TimeoutError if none comes for so long. The call is given up at the end."""
    try:
        events = call.__aiter__()
        while True:
            try:
                yield await asyncio.wait_for(anext(events), idle_s)
            except StopAsyncIteration:
                return
    finally:
        call.cancel()


async def generate_all(stub: Any, requests: list[generation_pb2.GenerateRequest]) -> list[Generated]:
    """Several generations at once."""
    return list(await asyncio.gather(*(generate(stub, request) for request in requests)))
