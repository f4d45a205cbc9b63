"""The end of the context, at every offset around the last tokens and for every draft length."""

import asyncio

import pytest
import pytest_asyncio

from tests.integration.gateway.real_stack import real_stack
from tests.tiny_models import make_tiny

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTEXT = 64
OFFSETS = range(1, 13)  # tokens that fit after the prompt
DRAFT_LENGTHS = (0, 1, 2, 3, 4, 7, 8)
WORDS = "The quick brown fox jumps over the lazy dog. "


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    folder = make_tiny("llama", root / "model", max_position=CONTEXT)
    shorter = make_tiny("llama", root / "shorter", max_position=CONTEXT - 6)
    drafters = {
        "twin": {"method": "draft_model", "max_draft_tokens": 8},
        "shorter": {"method": "draft_model", "max_draft_tokens": 8, "model": str(shorter)},
        "lookup": {"method": "prompt_lookup", "max_draft_tokens": 8},
    }
    async with real_stack(folder, drafters=drafters) as client:
        yield client


async def prompt_of(client, tokens):
    body = {"prompt": WORDS * 10, "max_tokens": 1, "truncate_prompt_tokens": 40, "return_token_ids": True}
    (choice,) = (await client.post("/v1/completions", json=body)).json()["choices"]
    return (choice["prompt_token_ids"] * 2)[:tokens]


async def complete(client, offset, speculation, **fields):
    body = {
        "prompt": await prompt_of(client, CONTEXT - offset),
        "temperature": 0.7,
        "seed": offset,
        "ignore_eos": True,
        "return_token_ids": True,
        "speculation": speculation,
    }
    response = await client.post("/v1/completions", json=body | fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("drafter", ["twin", "shorter", "lookup"])
async def test_answers_end_with_length_at_exactly_the_context_limit(client, drafter):
    expected = await asyncio.gather(*(complete(client, offset, {"enabled": False}) for offset in OFFSETS))
    for draft_length in DRAFT_LENGTHS:
        speculation = {"drafter": drafter, "max_draft_tokens": draft_length}
        bodies = await asyncio.gather(*(complete(client, offset, speculation) for offset in OFFSETS))
        for offset, body, off in zip(OFFSETS, bodies, expected, strict=True):
            (choice,) = body["choices"]
            assert choice["finish_reason"] == "length"
            assert body["usage"]["completion_tokens"] == len(choice["token_ids"]) == offset
            assert body["usage"]["total_tokens"] == CONTEXT
            assert choice["token_ids"] == off["choices"][0]["token_ids"]


@pytest.mark.parametrize("offset", OFFSETS)
async def test_max_tokens_up_to_the_limit_fits_and_one_more_is_refused(client, offset):
    body = await complete(client, offset, {"drafter": "twin", "max_draft_tokens": 8}, max_tokens=offset)
    assert body["usage"]["completion_tokens"] == offset
    refused = await client.post(
        "/v1/completions",
        json={"prompt": await prompt_of(client, CONTEXT - offset), "max_tokens": offset + 1, "stream": True},
    )
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (
        400,
        "max_tokens",
        "context_length_exceeded",
    )


async def test_a_prompt_that_fills_the_context_is_refused(client):
    response = await client.post("/v1/completions", json={"prompt": await prompt_of(client, CONTEXT)})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "prompt", "context_length_exceeded")


async def test_a_chat_without_max_tokens_goes_on_to_the_limit(client):
    body = {"messages": [{"role": "user", "content": "hello"}], "ignore_eos": True, "temperature": 0}
    answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == CONTEXT


@pytest.mark.parametrize("tokens", range(1, 6))
async def test_max_tokens_inside_an_accepted_run_cuts_it_there(client, tokens):
    body = await complete(client, 20, {"drafter": "twin", "max_draft_tokens": 8}, max_tokens=tokens)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == len(body["choices"][0]["token_ids"]) == tokens
    details = body["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] <= tokens


async def test_without_max_tokens_an_answer_may_fill_the_kv_pool_where_that_is_smaller_than_the_context(
    tmp_path,
):
    folder = make_tiny("llama", tmp_path / "model", max_position=1024)
    async with real_stack(folder, verifier={"pool_tokens": 256}) as client:
        body = {"messages": [{"role": "user", "content": WORDS}], "ignore_eos": True, "temperature": 0}
        response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        usage = response.json()["usage"]
        assert usage["total_tokens"] == 257  # the last token needs no KV
        refused = await client.post("/v1/chat/completions", json={**body, "max_tokens": 300})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
