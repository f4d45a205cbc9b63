"""/v1/chat/completions in OpenAI's shapes."""

import json

import pytest

from tests.integration.gateway.conftest import ids_of, say
from tests.integration.gateway.sse_events import events_in

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


async def events_of(client, body, path="/v1/chat/completions"):
    """Decoded events of a stream, without the last one, which must be [DONE]."""
    async with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        text = "".join([part async for part in response.aiter_text()])
    *events, done = events_in(text)
    assert done == ("", "[DONE]")
    assert all(event_id for event_id, _ in events)
    return [json.loads(data) for _, data in events]


async def test_whole_answer(client, stack):
    response = await client.post("/v1/chat/completions", json=CHAT | {"seed": 7, "max_tokens": 50})
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    tokens, prompt = len(ids_of("the quick brown fox")), len(ids_of("<user>hello\n<assistant>"))
    rounds = len(say("the quick brown fox"))
    assert body == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "the quick brown fox"},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {
                "accepted_prediction_tokens": tokens - rounds,
                "rejected_prediction_tokens": 4 * rounds - (tokens - rounds),
            },
        },
        "seed": 7,
    }
    session = next(iter(stack.verifier.sessions.values()))
    assert list(session.request.prompt) == ids_of("<user>hello\n<assistant>")


async def test_stream(client):
    events = await events_of(client, CHAT | {"seed": 7})
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1
    assert events[0]["object"] == "chat.completion.chunk"
    assert events[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert events[0]["seed"] == 7
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == "the quick brown fox"
    assert events[-1]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
    assert all("usage" not in event for event in events)
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)


async def test_stream_with_usage(client):
    events = await events_of(client, CHAT | {"stream_options": {"include_usage": True}})
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == len(ids_of("the quick brown fox"))


@pytest.mark.parametrize("stream", [False, True])
async def test_extensions(client, stream):
    asked = CHAT | {"return_token_ids": True, "speculation": {"stats": True, "max_draft_tokens": 3}}
    if stream:
        events = await events_of(client, asked)
        ids = [token_id for event in events for token_id in event["choices"][0]["token_ids"]]
        prompt, stats = events[0]["prompt_token_ids"], events[-1]["speculation_stats"]
    else:
        body = (await client.post("/v1/chat/completions", json=asked)).json()
        ids = body["choices"][0]["token_ids"]
        prompt, stats = body["prompt_token_ids"], body["speculation_stats"]
    assert ids == ids_of("the quick brown fox")
    assert prompt == ids_of("<user>hello\n<assistant>")
    rounds = len(say("the quick brown fox"))
    assert stats == {
        "rounds": rounds,
        "drafts": rounds,
        "draft_tokens": 4 * rounds,
        "accepted_tokens": len(ids) - rounds,
        "run_ahead_hits": 0,
        "missed": 0,
        "drafter": "scripted",
        "drafters": [
            {
                "name": "scripted",
                "asked": rounds,
                "proposals": rounds,
                "missed": 0,
                "draft_tokens": 4 * rounds,
                "accepted_tokens": len(ids) - rounds,
            }
        ],
    }


async def test_an_unseeded_request_is_told_its_seed(client, stack):
    seeds = [(await client.post("/v1/chat/completions", json=CHAT)).json()["seed"] for _ in range(2)]
    assert seeds == [session.request.sampling.seed for session in stack.verifier.sessions.values()]
    assert seeds[0] != seeds[1]
    assert max(seeds) < 2**53


async def test_parameters_reach_the_verifier(client, stack):
    parameters = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 9,
        "min_p": 0.125,
        "seed": -1,
        "max_completion_tokens": 5,
        "max_tokens": 6,
        "stop": "END",
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
        "speculation": {"enabled": False, "max_draft_tokens": 2, "drafter": "scripted"},
    }
    await client.post("/v1/chat/completions", json=CHAT | parameters)
    request = next(iter(stack.verifier.sessions.values())).request
    sampling, stop, speculation = request.sampling, request.stop, request.speculation
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 9, 0.125)
    assert sampling.seed == 2**64 - 1
    assert (stop.max_tokens, stop.stop_token_ids, stop.stop, stop.ignore_eos) == (5, {3, 4}, (), True)
    assert (speculation.enabled, speculation.max_draft_tokens, speculation.drafter) == (False, 2, "scripted")


async def test_the_default_length_is_the_rest_of_the_context(client, stack):
    await client.post("/v1/chat/completions", json=CHAT)
    request = next(iter(stack.verifier.sessions.values())).request
    assert request.stop.max_tokens == 256 - len(request.prompt)


async def test_contents_in_parts_and_the_developer_role(client, stack):
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "go", "name": "ann"},
    ]
    await client.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    prompt = next(iter(stack.verifier.sessions.values())).request.prompt
    assert list(prompt) == ids_of("<system>be\nbrief\n<assistant>\n<user>go\n<assistant>")
