"""A client of the OpenAI API that reads server-sent events, and resumes them by `Last-Event-ID`."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.traffic import PROMPT, LeaveError

PATH = "/v1/completions"
_WHERE = re.compile(r"[+!]?(/usage)?$")
"""What may stand behind the tokens of an event's id: which of the events behind the last token it is."""
AWAY = ("unavailable", "store_unavailable", "session_moved")
"""Codes of errors that may be over soon."""


@dataclass
class Streamed:
    """One completion as its client saw it."""

    response_id: str = ""
    created: int = 0
    last_event_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    events: int = 0
    times: list[float] = field(default_factory=list)  # when tokens came
    resumes: int = 0
    done: bool = False


class StatusError(Exception):
    """The gateway answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def body(
    prompt: str = PROMPT, *, max_tokens: int = 64, temperature: float = 0.0, **more: Any
) -> dict[str, Any]:
    """A request whose answer tells its token ids and its usage."""
    return {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": 7,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **more,
    }


async def persist(
    gateways: Sequence[str],
    request: dict[str, Any],
    *,
    on_event: Callable[[Streamed], None] | None = None,
    idle_s: float = 30.0,
    patience_s: float = 120.0,
    seen: Streamed | None = None,
) -> Streamed:
    """Read a completion to its end, resuming it at the next gateway whenever its stream breaks.

    Args:
        gateways: URLs, in the order in which they are tried.
        request: the body.
        on_event: called after each event.
        idle_s: a stream on which nothing came for so long counts as broken.
        patience_s: for how long it may go on without any event, over all gateways.
        seen: what was read before; filled as it goes.

    Raises:
        StatusError: a gateway refused, and not because something is away.
    """
    seen = seen if seen is not None else Streamed()
    attempt, last = 0, time.monotonic()
    while not seen.done:
        before = seen.events
        try:
            await read(gateways[attempt % len(gateways)], request, seen, on_event=on_event, idle_s=idle_s)
        except (httpx.TransportError, ConnectionResetError, StatusError, LeaveError) as error:
            if isinstance(error, StatusError) and error.status != 503:
                raise
            last = time.monotonic() if seen.events > before else last
            assert time.monotonic() - last < patience_s, f"nothing for {patience_s} s: {error}"
            await asyncio.sleep(0.1)
            attempt += 1
    assert seen.usage["completion_tokens"] == len(seen.token_ids)
    return seen


async def read(
    gateway: str,
    request: dict[str, Any],
    seen: Streamed,
    *,
    on_event: Callable[[Streamed], None] | None = None,
    idle_s: float = 30.0,
) -> None:
    """Read one stream to its end, `[DONE]`, behind what was seen before.

    Raises:
        StatusError: the gateway answered, or ended the stream, with an error.
        ConnectionResetError: the stream ended too early.
        httpx.TransportError: it broke.
    """
    headers = {"Last-Event-ID": seen.last_event_id} if seen.last_event_id else {}
    seen.resumes += bool(headers)
    timeout = httpx.Timeout(idle_s)
    async with (
        httpx.AsyncClient(base_url=gateway, timeout=timeout, trust_env=False) as client,
        client.stream("POST", PATH, json=request, headers=headers) as answer,
    ):
        if answer.status_code != 200:
            raise StatusError(answer.status_code, (await answer.aread()).decode(errors="replace"))
        async for event_id, data in _events(answer):
            assert not seen.done, "an event after the end"
            if data == "[DONE]":
                seen.done = True
            else:
                take(seen, event_id, json.loads(data))
            seen.events += 1
            if on_event is not None:
                on_event(seen)
    if not seen.done:
        raise ConnectionResetError("the stream ended without [DONE]")


def take(seen: Streamed, event_id: str, event: dict[str, Any]) -> None:
    """Add one event, checking that it belongs to the same answer and goes on where the last one ended."""
    if "error" in event:
        status = 503 if event["error"]["code"] in AWAY else 500
        raise StatusError(status, json.dumps(event["error"]))
    known = (seen.response_id, seen.created) if seen.response_id else None
    assert known in (None, (event["id"], event["created"])), "another answer"
    seen.response_id, seen.created = event["id"], event["created"]
    for choice in event["choices"]:
        assert not seen.finish_reason, "more after the end"
        seen.token_ids += choice.get("token_ids") or []
        seen.text += choice.get("text") or ""
        seen.finish_reason = choice.get("finish_reason") or ""
    if event["choices"]:
        seen.times.append(time.monotonic())
    if event.get("usage"):
        seen.usage = event["usage"]
    assert event_id, "an event without id"
    assert _WHERE.sub("", event_id) == f"{seen.response_id}/{len(seen.token_ids)}", (
        "it tells another position"
    )
    seen.last_event_id = event_id


async def _events(answer: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    """Id and data of each event."""
    event_id, data = "", ""
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            event_id = value
        elif name == "data":
            data = value
        elif not line and data:
            yield event_id, data
            event_id, data = "", ""
