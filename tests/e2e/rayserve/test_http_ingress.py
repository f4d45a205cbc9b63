"""The OpenAI API through Ray Serve's proxy is that of a local gateway: same tokens, same errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest

from tests.processes import parse_metrics, total
from tests.serve_cluster import ServeApp
from tests.sse import LeaveError, Streamed, body, persist
from tests.stack import Stack

COMPLETION = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 8, "seed": 5}
JSON = {"content-type": "application/json"}
WRONG: dict[str, tuple[str, str, dict[str, Any]]] = {
    "no such page": ("GET", "/nowhere", {}),
    "not that method": ("GET", "/v1/completions", {}),
    "no such model": ("POST", "/v1/completions", {"json": COMPLETION | {"model": "other"}}),
    "no such model card": ("GET", "/v1/models/other", {}),
    "a field out of bounds": ("POST", "/v1/completions", {"json": COMPLETION | {"temperature": -1}}),
    "a field that is missing": ("POST", "/v1/chat/completions", {"json": {"model": "tiny"}}),
    "no JSON": ("POST", "/v1/completions", {"content": b"{", "headers": JSON}),
    "another media type": ("POST", "/v1/completions", {"content": b"{}", "headers": {"content-type": "x/y"}}),
    "too large": ("POST", "/v1/completions", {"content": b" " * (4 * 1024 * 1024 + 1), "headers": JSON}),
    "too long": ("POST", "/v1/completions", {"json": COMPLETION | {"prompt": "fox " * 5000}}),
    "nothing to resume": (
        "POST",
        "/v1/completions",
        {
            "json": COMPLETION | {"stream": True},
            "headers": {"last-event-id": "cmpl-00000000000000000000000000000000/3"},
        },
    ),
}
HEADERS = ("content-type", "allow", "retry-after", "www-authenticate", "cache-control", "x-accel-buffering")


@pytest.fixture
async def pair(
    tiny: Stack, shared_app: ServeApp
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Clients of the local gateway and of Serve's proxy, over the same models."""
    async with AsyncExitStack() as stack:
        yield tuple(
            [
                await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60, trust_env=False))
                for url in (tiny.http, shared_app.cluster.http)
            ]
        )


async def test_errors_are_those_of_a_local_gateway(pair: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    for what, (method, path, request) in WRONG.items():
        local, served = [await client.request(method, path, **request) for client in pair]
        assert (served.status_code, served.text) == (local.status_code, local.text), what
        assert served.is_client_error and "error" in served.json(), what
        shown = [{name: one.headers.get(name) for name in HEADERS} for one in (local, served)]
        assert shown[0] == shown[1], what


async def test_pages_are_those_of_a_local_gateway(pair: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    for path in ("/health", "/version", "/openapi.json"):
        local, served = [await client.get(path) for client in pair]
        assert (served.status_code, served.json()) == (local.status_code, local.json()), path


async def test_the_sdk_gets_the_same_as_locally(tiny: Stack, shared_app: ServeApp) -> None:
    def ask_all(http: str) -> list[Any]:
        with openai.OpenAI(base_url=f"{http}/v1", api_key="none", max_retries=0) as client:
            chat: dict[str, Any] = {
                "model": "tiny",
                "messages": [{"role": "user", "content": "fox"}],
                "max_tokens": 24,
                "seed": 3,
            }
            whole = client.chat.completions.create(**chat)
            assert whole.usage is not None
            streamed = [
                chunk.choices[0].delta.content or ""
                for chunk in client.chat.completions.create(**chat, stream=True)
            ]
            shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            schema = {"name": "n", "schema": shape | {"additionalProperties": False}, "strict": True}
            structured = client.chat.completions.create(
                **chat, response_format={"type": "json_schema", "json_schema": schema}
            )
            assert "".join(streamed) == whole.choices[0].message.content
            with pytest.raises(openai.NotFoundError) as refused:
                client.chat.completions.create(**chat | {"model": "other"})
            return [
                whole.choices,
                (whole.usage.prompt_tokens, whole.usage.completion_tokens),
                structured.choices,
                (refused.value.code, refused.value.body),
            ]

    assert await asyncio.to_thread(ask_all, shared_app.cluster.http) == await asyncio.to_thread(
        ask_all, tiny.http
    )


async def test_a_request_id_is_echoed_once(pair: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    for client in pair:
        given = await client.post("/v1/completions", json=COMPLETION, headers={"x-request-id": "mine"})
        assert given.headers.get_list("x-request-id") == ["mine"]
        (made,) = (await client.get("/v1/models")).headers.get_list("x-request-id")
        assert made


async def test_a_client_that_goes_away_comes_back_to_the_rest(shared_app: ServeApp, tiny: Stack) -> None:
    def leave_once(seen: Streamed) -> None:
        if len(seen.token_ids) > 20 and not seen.resumes:
            raise LeaveError

    request = body(max_tokens=300, temperature=0.7, prompt="A client goes away")
    urls = (shared_app.cluster.http, tiny.http)
    broken, whole = await asyncio.gather(
        persist(urls[:1], request, on_event=leave_once), persist(urls[1:], request)
    )
    assert broken.resumes == 1
    assert (broken.token_ids, broken.text) == (whole.token_ids, whole.text)


async def test_the_ingress_lists_all_pages_of_metrics(tiny_app: ServeApp) -> None:
    async with httpx.AsyncClient(base_url=tiny_app.cluster.http, trust_env=False) as client:
        groups = (await client.get("/metrics/targets")).json()
        roles = [(group["labels"]["role"], group["labels"].get("name", "")) for group in groups]
        assert roles == [("drafter", "lookup"), ("drafter", "twin"), ("gateway", ""), ("verifier", "")]
        pages = {
            role: parse_metrics((await client.get(f"http://{group['targets'][0]}/metrics")).text)
            for (role, _), group in zip(roles, groups, strict=True)
        }
        assert total(pages["gateway"], "outrider_verifiers", state="ready") == 1
        await client.post("/v1/completions", json=COMPLETION)
        own = parse_metrics((await client.get("/metrics")).text)
        before = total(pages["gateway"], "outrider_requests_total", outcome="ok")
        assert total(own, "outrider_requests_total", outcome="ok") == before + 1
