"""Everything that can be wrong with a request, in OpenAI's error bodies."""

import json

import httpx
import pytest
import pytest_asyncio

from tests.integration.gateway.conftest import Stack, config_for, gateway_over
from tests.integration.gateway.error_bodies import check
from tests.integration.gateway.scripted_verifier import running

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION = {"model": "tiny", "prompt": "hello"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(model_folder, make_verifier):
    """One stack for all tests here: requests that are refused leave nothing behind."""
    verifier = make_verifier()
    async with (
        running(verifier) as address,
        gateway_over(config_for(model_folder, address)) as (addresses, serving, stop),
        httpx.AsyncClient(base_url=addresses["http"], timeout=30) as client,
    ):
        yield Stack(addresses["http"], addresses["grpc"], verifier, stop, serving), client


@pytest.fixture
def stack(shared):
    stack, _ = shared
    stack.verifier.sessions.clear()
    yield stack
    stack.verifier.refuse = stack.verifier.fail_after = None


@pytest.fixture
def client(shared, stack):
    return shared[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 101),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("seed", 2**64),
        ("seed", "x"),
        ("max_tokens", 0),
        ("max_tokens", 2**40),
        ("stop", ["a"] * 17),
        ("stop", [""]),
        ("stop", ["x" * 1025]),
        ("stop", 3),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [10**6]),
        ("ignore_eos", "yes"),
        ("stream", 1),
        ("stream_options", {"include_usage": True}),
        ("messages", []),
        ("messages", "hello"),
        ("model", 3),
    ],
)
async def test_values_out_of_bounds_name_their_field(client, stack, field, value):
    response = await client.post("/v1/chat/completions", json=CHAT | {field: value})
    code = "context_length_exceeded" if value == 2**40 else None
    check(response, 400, param=response.json()["error"]["param"], code=code)
    assert response.json()["error"]["param"].split("[")[0] == field
    assert field in response.json()["error"]["message"]
    assert not stack.verifier.sessions


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("speculation", {"max_draft_tokens": -1}, "speculation.max_draft_tokens"),
        ("speculation", {"max_draft_token": 1}, "speculation.max_draft_token"),
        ("messages", [{"role": "robot", "content": "x"}], "messages[0].role"),
        ("messages", [{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
        ("messages", [{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].id"),
        ("messages", [{"role": "user", "content": "refuse"}], "messages"),
    ],
)
async def test_nested_fields_are_named_with_their_path(client, field, value, param):
    check(await client.post("/v1/chat/completions", json=CHAT | {field: value}), 400, param=param)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("echo", True),
        ("length_penalty", 0.5),
        ("use_beam_search", True),
        ("spaces_between_special_tokens", False),
        ("audio", {"voice": "x"}),
    ],
)
async def test_what_is_not_supported_yet_is_refused_by_name(client, field, value):
    response = await client.post("/v1/chat/completions", json=CHAT | {field: value})
    check(response, 400, param=field, text="not supported yet")


async def test_neutral_values_and_unknown_fields_are_accepted(client):
    neutral = {
        "n": 1,
        "logprobs": False,
        "top_logprobs": None,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "some_future_field": {"a": [1]},
        "metadata": {"a": "b"},
        "user": "ann",
        "temperature": None,
        "stop": None,
    }
    response = await client.post("/v1/chat/completions", json=CHAT | neutral)
    assert response.status_code == 200, response.text


async def test_unknown_model(client):
    response = await client.post("/v1/chat/completions", json=CHAT | {"model": "other"})
    check(response, 404, kind="not_found_error", code="model_not_found", text="'other'")
    check(await client.get("/v1/models/other"), 404, kind="not_found_error", code="model_not_found")


async def test_what_can_never_fit_is_refused_without_tokenising_it(client, stack):
    text = "the end. " * 100_000
    messages = [{"role": "user", "content": text}]
    response = await client.post("/v1/chat/completions", json=CHAT | {"messages": messages})
    check(response, 400, param="messages", code="context_length_exceeded", text="at most 255 tokens")
    assert "characters are more" in response.json()["error"]["message"]
    response = await client.post("/v1/completions", json=COMPLETION | {"prompt": ["short", text]})
    check(response, 400, param="prompt", code="context_length_exceeded", text="900000 characters are more")
    assert all(session.request.prompt for session in stack.verifier.sessions.values())


async def test_prompt_too_long_is_refused_before_any_token(client, stack):
    long = [{"role": "user", "content": "the " * 400}]
    response = await client.post("/v1/chat/completions", json=CHAT | {"messages": long, "stream": True})
    check(response, 400, param="messages", code="context_length_exceeded", text="at most 255 tokens")
    response = await client.post("/v1/completions", json=COMPLETION | {"prompt": [1] * 256})
    check(response, 400, param="prompt", code="context_length_exceeded")
    response = await client.post("/v1/completions", json=COMPLETION | {"max_tokens": 256})
    check(response, 400, param="max_tokens", code="context_length_exceeded")
    assert not stack.verifier.sessions


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], ["a", 3], [True], None, [1, "a"], [-1], [10**6], ["x"] * 65]
)
async def test_bad_prompts(client, prompt):
    check(await client.post("/v1/completions", json=COMPLETION | {"prompt": prompt}), 400, param="prompt")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "tiny"',
        b'"text"',
        b"\xff\xfe",
        b'{"model": "\xc3"}',
        b'{"model": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "tiny", "messages": [], "temperature": NaN}',
        b'{"model": "tiny", "max_tokens": 1' + b"0" * 5000 + b"}",
    ],
)
async def test_bodies_that_are_no_request(client, body):
    response = await client.post("/v1/chat/completions", content=body)
    check(response, 400, param=response.json()["error"]["param"])


async def test_a_body_over_the_limit_is_refused_declared_or_not(client, stack):
    body = json.dumps(CHAT | {"user": "x" * 5_000_000}).encode()

    async def in_parts():
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    for content in (body, in_parts()):
        response = await client.post("/v1/chat/completions", content=content)
        check(response, 413, text="at most 4194304 bytes")
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_paths_and_methods(client):
    check(await client.get("/v1/nothing"), 404, kind="not_found_error")
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        response = await client.request(method, "/v1/chat/completions")
        check(response, 405)
        assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x" * 999],
)
async def test_a_body_that_is_said_not_to_be_json_is_refused(client, stack, content_type):
    body, headers = json.dumps(CHAT), {"content-type": content_type}
    response = await client.post("/v1/chat/completions", content=body, headers=headers)
    check(response, 415, text="must be application/json")
    assert len(response.text) < 600
    assert not stack.verifier.sessions


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json", None]
)
async def test_json_by_another_name_or_by_none_is_read(client, content_type):
    headers = {} if content_type is None else {"content-type": content_type}
    response = await client.post("/v1/chat/completions", content=json.dumps(CHAT), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "a", "max_tokens": 1, "max_tokens": 2}',
        b'{"prompt": "a", "speculation": {"enabled": true, "enabled": false}}',
        b'{"prompt": "a", "unknown": [{"x": 1, "x": 1}]}',
        b'{"prompt": "a", "' + b"x" * 5000 + b'": 1, "' + b"x" * 5000 + b'": 2}',
    ],
)
async def test_a_field_given_twice_is_refused(client, stack, body):
    response = await client.post("/v1/completions", content=body)
    check(response, 400, text="Detected duplicate key")
    assert len(response.text) < 600
    assert not stack.verifier.sessions


@pytest.mark.parametrize("body", [b"[]", b"3", b"null", b'"prompt"'])
async def test_a_body_that_is_no_object_is_refused(client, body):
    check(await client.post("/v1/completions", content=body), 400, text="must be a JSON object")


CONTRADICTIONS = [
    ("/v1/chat/completions", {"top_logprobs": 3}, "top_logprobs"),
    ("/v1/chat/completions", {"logprobs": 3}, "logprobs"),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("/v1/chat/completions", {"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ("/v1/chat/completions", {"stream_options": {}}, "stream_options"),
    ("/v1/chat/completions", {"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ("/v1/completions", {"min_tokens": 17}, "min_tokens"),
    ("/v1/completions", {"max_tokens": 0}, "max_tokens"),
    ("/v1/completions", {"n": 3, "best_of": 2}, "best_of"),
    ("/v1/completions", {"n": 1, "best_of": 2, "stream": True}, "best_of"),
]


@pytest.mark.parametrize(("path", "asked", "param"), CONTRADICTIONS)
async def test_parameters_that_contradict_each_other(client, stack, path, asked, param):
    body = CHAT if path == "/v1/chat/completions" else COMPLETION
    check(await client.post(path, json=body | asked), 400, param=param)
    assert not stack.verifier.sessions


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 2.1),
        ("presence_penalty", "1"),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1000),
        ("typical_p", 0),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"05": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {str(10**6): 1}),
        ("logit_bias", {str(10**400): 1}),
        ("logit_bias", [[5, 1]]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [10**6]),
        ("allowed_token_ids", ["a"]),
        ("bad_words", [""]),
        ("bad_words", ["  "]),
        ("bad_words", "word"),
        ("bad_words", ["x" * 129]),
        ("bad_words", ["x"] * 129),
        ("min_tokens", -1),
        ("min_tokens", 1.5),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("best_of", 0),
        ("echo", 1),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("skip_special_tokens", "no"),
        ("cache_salt", ""),
        ("cache_salt", 7),
        ("cache_salt", "x" * 257),
        ("include_stop_str_in_output", 1),
        ("speculation", {"acceptance": "greedy"}),
        ("speculation", {"acceptance": None, "stats": 1}),
        ("stream_options", {"include_usage": 1}),
    ],
)
async def test_values_of_completions_out_of_bounds_name_their_field(client, stack, field, value):
    response = await client.post("/v1/completions", json=COMPLETION | {field: value})
    param = response.json()["error"]["param"]
    check(response, 400, param=param)
    assert param.split(".")[0].split("[")[0] == field
    assert field in response.json()["error"]["message"]
    assert len(response.text) < 600
    assert not stack.verifier.sessions


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"prompt": [10**400]}, 400),
        ({"prompt": [-(10**400)]}, 400),
        ({"max_tokens": 10**400}, 400),
        ({"top_k": 10**400}, 400),
        ({"stop_token_ids": [10**400]}, 400),
        ({"speculation": {"x" * 5000: 1}}, 400),
        ({"speculation": {"drafter": "x" * 5000}}, 400),
        ({"model": "x" * 5000}, 404),
    ],
)
async def test_what_is_wrong_is_not_repeated_whole(client, changes, status):
    response = await client.post("/v1/completions", json=COMPLETION | changes)
    assert response.status_code == status
    assert len(response.text) < 600
