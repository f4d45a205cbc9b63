"""Bodies that are bounded before any time is spent on what is in them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from outrider.core.errors import InvalidRequestError
from outrider.gateway.openai.bodies import MAX_MEMBERS, parse_body
from outrider.gateway.openai.requests import ChatRequest, CompletionRequest

MANY = 400_000


def parsed(body: dict[str, Any]) -> ChatRequest | CompletionRequest:
    return parse_body(json.dumps(body).encode(), ChatRequest if "messages" in body else CompletionRequest)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a", "stop": [1] * MANY},
        {"prompt": "a", "stop": [1] * (MAX_MEMBERS - 8)},
        {"prompt": "a", "bad_words": [{}] * MANY},
        {"prompt": "a", "stop_token_ids": ["a"] * MANY},
        {"prompt": "a", "logit_bias": {str(n): "a" for n in range(MANY)}},
        {"prompt": "a", "speculation": {f"x{n}": 1 for n in range(MANY)}},
        {"prompt": [["a"] * MANY]},
        {"prompt": [["a"] * 7000] * 60},
        {"messages": [{"role": "user", "content": [0] * MANY}]},
        {"messages": [{"role": "user", "content": [0] * 100}] * 4000},
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "x"}] * MANY},
    ],
)
def test_a_body_with_very_much_wrong_in_it_is_refused_soon(body: dict[str, Any]) -> None:
    start = time.process_time()
    with pytest.raises(InvalidRequestError) as caught:
        parsed(body)
    assert time.process_time() - start < 3.0  # without a bound: 20 s for a million
    assert len(str(caught.value)) < 300


def test_long_prompts_of_token_ids_are_no_members() -> None:
    one = parsed({"prompt": [1] * MANY})
    several = parsed({"prompt": [[1] * MANY, [2] * MANY]})
    assert isinstance(one, CompletionRequest) and isinstance(several, CompletionRequest)
    assert one.prompts == 1 and several.prompts == 2


def test_a_long_conversation_is_read() -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": "a"}]}] * 4000
    assert isinstance(parsed({"messages": turns}), ChatRequest)


def test_the_first_of_several_errors_is_told() -> None:
    with pytest.raises(InvalidRequestError, match=r"stop\[0\].*299 more"):
        parsed({"prompt": "a", "stop": [1] * 300})
