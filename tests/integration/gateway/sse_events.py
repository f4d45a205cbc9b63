"""Server-sent events as a client reads them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

Events = list[tuple[str, dict[str, Any]]]
"""Id and content of each."""


def events_in(text: str) -> list[tuple[str, str]]:
    """Id (empty: none) and data of each whole event."""
    *whole, rest = text.split("\n\n")
    assert rest == "", "the stream broke within an event"
    events = []
    for lines in whole:
        *ids, data = lines.split("\n")
        assert data.startswith("data: ") and len(ids) <= 1 and all(one.startswith("id: ") for one in ids)
        events.append(("".join(ids).removeprefix("id: "), data.removeprefix("data: ")))
    return events


async def read_events(client: httpx.AsyncClient, path: str, body: dict[str, Any], last: str = "") -> Events:
    """All events up to [DONE], behind the one with the id `last`."""
    headers = {"Last-Event-ID": last} if last else {}
    response = await client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    *events, done = events_in(response.text)
    assert done == ("", "[DONE]")
    return [(event_id, json.loads(data)) for event_id, data in events]


def folded(events: Events) -> dict[str, Any]:
    """What a client makes of a stream, however its tokens were grouped."""
    answer: dict[str, Any] = {"choices": {}, "usage": []}
    for _, event in events:
        for name in ("id", "object", "created", "model"):
            assert answer.setdefault(name, event[name]) == event[name]
        if event.get("usage") and not event["choices"]:
            answer["usage"].append(
                {name: event["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
            )
        for choice in event["choices"]:
            _fold_choice(answer["choices"].setdefault(choice["index"], {}), choice)
            own = answer["choices"][choice["index"]]
            for name in ("seed", "prompt_logprobs", "prompt_token_ids"):
                if name in event:
                    own[name] = [*own.get(name, []), event[name]]
    return answer


def _fold_choice(own: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.get("delta", {"content": choice.get("text")})
    own["text"] = own.get("text", "") + (delta.get("content") or "")
    own["roles"] = own.get("roles", 0) + ("role" in delta)
    own["token_ids"] = own.get("token_ids", []) + choice.get("token_ids", [])
    for call in delta.get("tool_calls", ()):
        calls = own.setdefault("calls", [])
        if call["index"] == len(calls):
            calls.append([call["id"], call["function"]["name"], call["function"]["arguments"]])
        else:
            assert "id" not in call and "name" not in call["function"]
            calls[call["index"]][2] += call["function"]["arguments"]
    for name in ("prompt_logprobs", "prompt_token_ids", "finish_reason"):
        if choice.get(name):
            own[name] = [*own.get(name, []), choice[name]]
    for name, told in (choice.get("logprobs") or {}).items():
        own[name] = own.get(name, []) + (told or [])


@asynccontextmanager
async def first_events(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], count: int
) -> AsyncIterator[Events]:
    """The first events of a stream that is then dropped."""
    async with client.stream("POST", path, json=body) as response:
        text = ""
        async for part in response.aiter_text():
            text += part
            if text.count("\n\n") >= count:
                break
        whole = "\n\n".join([*text.split("\n\n")[:count], ""])
        yield [(event_id, json.loads(data)) for event_id, data in events_in(whole)]
