"""Answers as what must not depend on speculation: whole or streamed, one form for both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import httpx

from tests.e2e.any_parameters.requests import Asked

TIMEOUT_S = 60.0


async def ask(
    client: httpx.AsyncClient, asked: Asked, body: dict[str, Any], accepted: Counter[str]
) -> dict[str, Any]:
    """Send it; what came, in a form that is the same for streams and whole answers.

    Draft tokens that were accepted are added to `accepted`, by drafter.
    """
    response = await client.post(asked.route, json=body, timeout=TIMEOUT_S)
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        return dict(response.json()["error"])
    chunks = list(_events(response.text)) if body.get("stream") else [response.json()]
    if "error" in chunks[-1]:  # nothing is left that may be drawn: found out in mid-stream
        return dict(chunks[-1]["error"])
    answer = _joined(chunks)
    # These two say how it came about, not what it is.
    accepted[asked.drafter] += answer["usage"].pop("completion_tokens_details")["accepted_prediction_tokens"]
    answer["usage"].pop("prompt_tokens_details")
    return answer


def _events(text: str) -> Iterable[dict[str, Any]]:
    *events, last, end = text.split("\n\n")
    assert end == "", text[-500:]
    for event in events:
        yield json.loads(event.split("\n")[-1].removeprefix("data: "))
    if last != "data: [DONE]":
        assert last.startswith('data: {"error":'), last
        yield json.loads(last.removeprefix("data: "))


def _joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"seed": None, "choices": {}, "usage": None}
    for chunk in chunks:
        if answer["seed"] is None:
            answer["seed"] = chunk.get("seed")
        answer["usage"] = chunk.get("usage") or answer["usage"]
        for name in ("prompt_token_ids", "prompt_logprobs"):
            if chunk.get(name) is not None:  # in the first event of each choice, and the same in all
                assert answer.setdefault(name, chunk[name]) == chunk[name]
        for choice in chunk["choices"]:
            _add(answer["choices"].setdefault(choice["index"], _empty()), choice)
    _check(answer)
    return answer


def _empty() -> dict[str, Any]:
    return {"text": "", "token_ids": [], "logprobs": {}, "finish_reason": None, "prompt_token_ids": []}


def _add(whole: dict[str, Any], choice: dict[str, Any]) -> None:
    said = choice.get("message") or choice.get("delta") or choice
    whole["text"] += said.get("content") or said.get("text") or ""
    for name in ("token_ids", "prompt_token_ids"):
        whole[name] += choice.get(name) or []
    for name, values in (choice.get("logprobs") or {}).items():
        if values:  # a stream of no tokens has no event for them
            whole["logprobs"].setdefault(name, []).extend(values)
    if choice.get("prompt_logprobs") is not None:
        whole["prompt_logprobs"] = choice["prompt_logprobs"]
    if choice["finish_reason"] is not None:
        assert whole["finish_reason"] is None, "two ends of one choice"
        whole["finish_reason"] = choice["finish_reason"]


def _check(answer: dict[str, Any]) -> None:
    """What holds for every answer, whatever was asked."""
    usage, choices = answer["usage"], answer["choices"].values()
    delivered = sum(len(choice["token_ids"]) for choice in choices)
    assert usage["completion_tokens"] == delivered
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] <= delivered
    assert sorted(answer["choices"]) == list(range(len(answer["choices"])))
    assert all(choice["finish_reason"] in ("stop", "length") for choice in choices)
