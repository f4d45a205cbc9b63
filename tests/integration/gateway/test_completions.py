"""/v1/completions in OpenAI's shapes, and the service routes."""

import httpx
import pytest

from outrider import __version__
from tests.integration.gateway.conftest import ids_of, say
from tests.integration.gateway.test_chat import events_of

COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 64}


async def test_whole_completion(client, stack):
    body = (await client.post("/v1/completions", json=COMPLETION | {"seed": 1})).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "the quick brown fox", "logprobs": None, "finish_reason": "length"}
    ]
    assert body["usage"]["prompt_tokens"] == len(ids_of("hello"))
    assert body["seed"] == 1


async def test_stream(client):
    events = await events_of(client, COMPLETION | {"return_token_ids": True}, "/v1/completions")
    assert "".join(event["choices"][0]["text"] for event in events) == "the quick brown fox"
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + [
        "length"
    ]
    assert events[0]["choices"][0]["prompt_token_ids"] == ids_of("hello")
    assert "seed" in events[0]
    assert "seed" not in events[1]


async def test_the_default_length_is_16_or_what_fits(client, stack):
    await client.post("/v1/completions", json={"model": "tiny", "prompt": "hello"})
    await client.post("/v1/completions", json={"model": "tiny", "prompt": [1] * 250})
    lengths = [session.request.stop.max_tokens for session in stack.verifier.sessions.values()]
    assert lengths == [16, 6]


async def test_token_ids_as_prompt_and_no_model_name(client, stack):
    response = await client.post("/v1/completions", json={"prompt": [5, 6, 7]})
    assert response.status_code == 200
    assert next(iter(stack.verifier.sessions.values())).request.prompt == (5, 6, 7)


def echo(request):
    """Rounds that repeat the prompt."""
    return [(request.prompt, 0)]


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_are_several_choices(client, stack, stream):
    stack.verifier.script = echo
    prompts = ["the dog", "fox", "a quick end"]
    asked = COMPLETION | {"prompt": prompts, "seed": 3}
    if stream:
        texts = ["", "", ""]
        events = await events_of(
            client, asked | {"stream_options": {"include_usage": True}}, "/v1/completions"
        )
        for event in events[:-1]:
            (choice,) = event["choices"]
            texts[choice["index"]] += choice["text"]
        usage = events[-1]["usage"]
    else:
        body = (await client.post("/v1/completions", json=asked)).json()
        texts = [choice["text"] for choice in body["choices"]]
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        usage = body["usage"]
    assert texts == prompts
    tokens = sum(len(ids_of(prompt)) for prompt in prompts)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (tokens, tokens)
    assert {session.request.sampling.seed for session in stack.verifier.sessions.values()} == {3}


async def test_one_of_several_that_fails_ends_the_others(client, stack):
    stack.verifier.script = lambda request: say("dog") if len(request.prompt) < 5 else [([9], 5)]
    response = await client.post("/v1/completions", json=COMPLETION | {"prompt": ["fox", [1] * 300]})
    assert response.status_code == 400
    for session in stack.verifier.sessions.values():
        await session.ended.wait()
    assert stack.verifier.running == 0


async def test_models(client):
    listed = (await client.get("/v1/models")).json()
    (card,) = listed["data"]
    assert listed["object"] == "list"
    assert isinstance(card.pop("created"), int)
    assert card == {"id": "tiny", "object": "model", "owned_by": "outrider", "max_model_len": 256}
    assert (await client.get("/v1/models/tiny")).json()["id"] == "tiny"


async def test_service_routes(client):
    health = await client.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok", "reasons": []})
    assert (await client.get("/version")).json() == {"version": __version__}
    document = (await client.get("/openapi.json")).json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert "speculation" in body["schema"]["properties"]
    assert "Message" in document["components"]["schemas"]


async def test_request_ids_are_echoed_or_given(client, stack):
    asked = await client.post("/v1/completions", json=COMPLETION, headers={"X-Request-Id": "abc-1"})
    assert asked.headers["x-request-id"] == "abc-1"
    assert next(iter(stack.verifier.sessions.values())).metadata["x-request-id"] == "abc-1"
    given = (await client.get("/health")).headers["x-request-id"]
    assert given.startswith("req-")
    unsafe = (await client.get("/health", headers={"X-Request-Id": "x" * 200})).headers["x-request-id"]
    assert unsafe.startswith("req-")


async def test_other_requests_are_served_while_one_streams(client, stack, hold):
    async with client.stream("POST", "/v1/completions", json=COMPLETION | {"stream": True}) as held:
        assert held.status_code == 200
        stack.verifier.pace = hold.nothing
        async with httpx.AsyncClient(base_url=stack.http) as other:
            assert (await other.post("/v1/completions", json=COMPLETION)).status_code == 200
        hold.release.set()
        assert "[DONE]" in (await held.aread()).decode()
