"""The gateway over a real verifier with a tiny random model."""

import pytest

from outrider.wire import channels, services
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.real_stack import real_addresses, real_stack
from tests.integration.gateway.test_chat import events_of
from tests.tiny_models import make_tiny

ASKED = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny("llama", tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
async def client(folder):
    async with real_stack(folder) as client:
        yield client


async def complete(client, **fields):
    response = await client.post("/v1/completions", json=ASKED | {"return_token_ids": True} | fields)
    assert response.status_code == 200, response.text
    body = response.json()
    return body["choices"][0], body


async def test_counts_of_a_session_that_lives_on_are_those_of_all_its_rounds(folder):
    async with real_addresses(folder, drafters={"twin": {"method": "draft_model"}}) as addresses:
        channel = channels.open_channel(addresses["grpc"])
        client = services.generation_client(channel)
        asked = pb.GenerateRequest(prompt="x", stop={"max_tokens": 200, "ignore_eos": True})
        older, had = aiter(client.Generate(asked)), 0
        session_id = (await anext(older)).started.generation_id
        while had < 20:
            had += len((await anext(older)).delta.token_ids)
        newer = client.Resume(pb.ResumeRequest(generation_id=session_id, from_token=had))
        (finished,) = [event.finished async for event in newer if event.HasField("finished")]
        await channel.close()
    stats = finished.speculation
    assert stats.accepted_tokens > 100
    assert stats.rounds + stats.accepted_tokens >= finished.usage.completion_tokens == 200


async def test_stream_and_whole_are_the_same_and_stops_cut_them(client):
    whole, body = await complete(client, ignore_eos=True)
    assert body["usage"]["completion_tokens"] == len(whole["token_ids"]) == 24
    events = await events_of(client, ASKED | {"ignore_eos": True}, "/v1/completions")
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]

    text = whole["text"]
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    cut, body = await complete(client, ignore_eos=True, stop=stop)
    assert cut["text"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop"
    assert cut["token_ids"] == whole["token_ids"][: len(cut["token_ids"])]
    assert body["usage"]["completion_tokens"] == len(cut["token_ids"])

    last = whole["token_ids"][10]
    at_token, _ = await complete(client, ignore_eos=True, stop_token_ids=[last])
    assert at_token["token_ids"] == whole["token_ids"][: whole["token_ids"].index(last)]
    assert at_token["finish_reason"] == "stop"


async def test_a_returned_seed_gives_the_same_tokens_again(client):
    first, body = await complete(client, temperature=1, ignore_eos=True)
    again, _ = await complete(client, temperature=1, ignore_eos=True, seed=body["seed"])
    assert first["token_ids"] == again["token_ids"]


async def test_a_drafter_that_does_not_exist_is_refused_by_name(client):
    response = await client.post("/v1/completions", json=ASKED | {"speculation": {"drafter": "nobody"}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "speculation.drafter"


async def test_parameters_that_leave_no_token_end_with_an_error_of_the_request(client):
    fields = {"allowed_token_ids": [2], "min_tokens": 3}  # 2 ends the sequence
    response = await client.post("/v1/completions", json=ASKED | fields)
    assert response.status_code == 400
    assert "no token is allowed after 0 generated tokens" in response.json()["error"]["message"]
    free, _ = await complete(client)
    assert free["token_ids"]


async def test_logits_are_edited_at_every_token(client):
    forced, _ = await complete(client, logit_bias={"77": 100})
    assert forced["token_ids"] == [77] * 24
    hello = {"prompt": "Repeat the word 'hello' multiple times: hello", "max_tokens": 8, "ignore_eos": True}
    pushed, _ = await complete(client, **hello, frequency_penalty=-2.0)
    held_back, _ = await complete(client, **hello, frequency_penalty=2.0)
    assert pushed["token_ids"] != held_back["token_ids"]
    assert len(set(pushed["token_ids"])) < len(set(held_back["token_ids"]))
