"""What each parameter of a request becomes on its way to the verifier."""

import asyncio

import httpx
import pytest

from outrider.core.params import Acceptance, LogitEdits, LogprobParams
from tests.integration.gateway.conftest import config_for, gateway_over, ids_of
from tests.integration.gateway.scripted_verifier import running
from tests.integration.gateway.test_chat import CHAT, events_of

COMPLETION = {"model": "tiny", "prompt": "the dog"}
PATHS = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]


async def sessions_of(client, stack, body, path="/v1/completions"):
    stack.verifier.sessions.clear()
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return [session.request for session in stack.verifier.sessions.values()]


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_sampling_parameters_reach_the_verifier(client, stack, path, body):
    asked = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.125,
        "typical_p": 0.75,
        "seed": -1,
        "presence_penalty": 1.5,
        "frequency_penalty": -2,
        "repetition_penalty": 1.25,
        "logit_bias": {"7": -100, "3": 2.5},
        "allowed_token_ids": [9, 3, 7],
        "min_tokens": 2,
        "max_tokens": 5,
        "stop_token_ids": [11, 12],
        "ignore_eos": True,
        "speculation": {
            "enabled": True,
            "max_draft_tokens": 3,
            "drafter": "scripted",
            "acceptance": "block",
        },
    }
    (session,) = await sessions_of(client, stack, body | asked, path)
    sampling = session.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 0)
    assert (sampling.min_p, sampling.typical_p, sampling.seed) == (0.125, 0.75, 2**64 - 1)
    edits = sampling.edits
    assert (edits.presence_penalty, edits.frequency_penalty, edits.repetition_penalty) == (1.5, -2, 1.25)
    assert dict(edits.logit_bias) == {7: -100, 3: 2.5}
    assert sorted(edits.allowed_token_ids) == [3, 7, 9]
    assert edits.min_tokens == 2
    assert (session.stop.max_tokens, session.stop.ignore_eos) == (5, True)
    assert session.stop.stop_token_ids == {11, 12}
    speculation = session.speculation
    assert (speculation.enabled, speculation.max_draft_tokens, speculation.drafter) == (True, 3, "scripted")
    assert speculation.acceptance is Acceptance.BLOCK


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_null_is_the_default_of_every_parameter(client, stack, path, body):
    document = (await client.get("/openapi.json")).json()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names = set(schema["properties"]) - {"prompt", "messages", "model"}
    assert len(names) > 30
    (nulls,) = await sessions_of(client, stack, body | dict.fromkeys(names) | {"seed": 1}, path)
    (plain,) = await sessions_of(client, stack, body | {"seed": 1}, path)
    assert nulls.sampling == plain.sampling
    assert nulls.sampling.edits == LogitEdits()
    assert (nulls.stop, nulls.speculation, nulls.logprobs) == (plain.stop, plain.speculation, LogprobParams())


@pytest.mark.parametrize(
    ("path", "asked", "logprobs"),
    [
        ("/v1/chat/completions", {"logprobs": True}, LogprobParams(0)),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 5}, LogprobParams(5)),
        ("/v1/chat/completions", {"logprobs": False, "top_logprobs": 0}, LogprobParams()),
        ("/v1/chat/completions", {"prompt_logprobs": 0}, LogprobParams(None, 0)),
        ("/v1/completions", {"logprobs": 0}, LogprobParams(0)),
        ("/v1/completions", {"logprobs": 20, "prompt_logprobs": 3}, LogprobParams(20, 3)),
        ("/v1/completions", {"logprobs": 2, "echo": True}, LogprobParams(2, 2)),
        ("/v1/completions", {"logprobs": 2, "echo": True, "prompt_logprobs": 5}, LogprobParams(2, 5)),
        ("/v1/completions", {"echo": True}, LogprobParams()),
    ],
)
async def test_logprobs_that_are_asked_for(client, stack, path, asked, logprobs):
    (session,) = await sessions_of(client, stack, dict(PATHS)[path] | asked, path)
    assert session.logprobs == logprobs


async def test_bad_words_become_tokens_at_the_start_of_a_text_and_after_a_space(client, stack):
    words = ["the", "  dog", "quick brown", "日"]
    (session,) = await sessions_of(client, stack, COMPLETION | {"bad_words": words})
    expected = []
    for word in words:
        bare, spaced = ids_of(word.lstrip()), ids_of(" " + word.lstrip())
        expected.append(tuple(bare))
        if spaced[0] != bare[0] and len(spaced) == len(bare):
            expected.append(tuple(spaced))
    assert list(session.sampling.edits.bad_words) == expected
    assert len(expected) > len(words)


async def test_special_tokens_of_the_tokenizer_can_be_left_out(client, stack):
    (with_them,) = await sessions_of(client, stack, COMPLETION)
    (without,) = await sessions_of(client, stack, COMPLETION | {"add_special_tokens": False})
    assert list(without.prompt) == ids_of("the dog")
    assert with_them.prompt[-len(without.prompt) :] == without.prompt


@pytest.mark.parametrize("kept", [1, 4, 100])
async def test_a_chat_is_cut_to_its_last_tokens(client, stack, kept):
    (whole,) = await sessions_of(client, stack, CHAT, "/v1/chat/completions")
    (cut,) = await sessions_of(client, stack, CHAT | {"truncate_prompt_tokens": kept}, "/v1/chat/completions")
    assert cut.prompt == whole.prompt[-kept:]


async def test_n_answers_have_seeds_in_a_row_around_the_end_of_the_range(client, stack):
    sessions = await sessions_of(client, stack, COMPLETION | {"n": 3, "seed": 2**64 - 2})
    assert sorted(session.sampling.seed for session in sessions) == [0, 2**64 - 2, 2**64 - 1]


async def test_answers_to_one_long_prompt_wait_until_it_is_prefilled_once(client, stack):
    release = asyncio.Event()

    async def pace(session, index):
        await release.wait()

    stack.verifier.pace = pace
    asked = {"prompt": [5] * 100, "n": 3}
    answer = asyncio.create_task(client.post("/v1/completions", json=asked))
    await stack.verifier.started.wait()
    other = asyncio.create_task(client.post("/v1/completions", json={"prompt": [5] * 4, "n": 3}))
    while len(stack.verifier.sessions) < 4:
        await asyncio.sleep(0)
    assert sum(len(session.request.prompt) == 100 for session in stack.verifier.sessions.values()) == 1
    release.set()
    assert len((await answer).json()["choices"]) == len((await other).json()["choices"]) == 3
    assert len(stack.verifier.sessions) == 6


async def test_nothing_is_streamed_before_every_prompt_is_admitted(client, stack):
    body = {"prompt": [[5] * 4, [5] * 300], "stream": True}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_usage_of_a_stream_comes_only_when_asked_for(client):
    for options, last in [(None, False), ({}, False), ({"include_usage": True}, True)]:
        events = await events_of(client, CHAT | {"stream_options": options, "n": 2})
        assert (events[-1]["choices"] == []) is last
        assert all(("usage" in event) is last for event in events)
        assert all(event["usage"] is None for event in events[:-1] if last)
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await events_of(client, CHAT | {"stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0], counts[-2]) == (0, counts[-1])


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"n": 3}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": ["a", "b"], "n": 2}, "n"),
        ({"prompt": ["a", "b", "c"]}, "n"),
        ({"n": 2, "max_tokens": 51}, "n"),
        ({"best_of": 2, "max_tokens": 51}, "best_of"),
    ],
)
async def test_budgets_over_all_answers(model_folder, make_verifier, asked, field):
    verifier = make_verifier()
    async with running(verifier) as address:
        config = config_for(model_folder, address, max_choices=2, max_request_tokens=100)
        async with (
            gateway_over(config) as (addresses, _, _),
            httpx.AsyncClient(base_url=addresses["http"]) as client,
        ):
            refused = await client.post("/v1/completions", json=COMPLETION | asked)
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, field)
            assert "must be at most" in error["message"]
            assert not verifier.sessions
            fits = await client.post("/v1/completions", json=COMPLETION | {"n": 2, "max_tokens": 50})
            assert fits.status_code == 200
            one = await client.post("/v1/completions", json=COMPLETION | {"max_tokens": 200})
            assert one.status_code == 200
