"""No text of a prompt or an answer, and no secret, in logs at their most talkative, in spans or metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio

from outrider.gateway.auth.entries import hash_of, new_key
from outrider.wire.v1 import generation_pb2, generation_pb2_grpc
from tests.otlp_sink import OtlpSink
from tests.servers import redis_server
from tests.stack import Stack, tiny_config

PROMPT = "a walrus named Quillfeather plays the bassoon"
MARK = "Quillfeather"
PASSWORD = "redis-password-Zanzibar"
TOKEN = "cluster-token-Timbuktu-0001"
KEY, STRANGER = new_key(), new_key()


@pytest.fixture(scope="module")
def sink() -> Iterator[OtlpSink]:
    with OtlpSink() as running:
        yield running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, sink: OtlpSink) -> Iterator[Stack]:
    """Everything that has a secret has one; all that can be logged is."""
    folder = tmp_path_factory.mktemp("secured")
    (folder / "token").write_text(TOKEN)
    (folder / "keys").write_text(json.dumps([{"name": "alice", "hash": hash_of(KEY)}]))
    config = tiny_config(folder)
    with redis_server(password=PASSWORD) as redis:
        config |= {
            "store": {"kind": "redis", "url": redis.url},
            "registry": {"kind": "redis"},
            "telemetry": {"otlp_endpoint": sink.endpoint, "log_level": "debug"},
            "security": {
                "cluster_token_file": str(folder / "token"),
                "api_keys_file": str(folder / "keys"),
            },
        }
        with Stack(folder, config) as running:
            yield running


async def ask_well(client: httpx.AsyncClient) -> list[str]:
    """Requests that succeed; the texts of their answers."""
    chat = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 24}
    plain = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "logprobs": 2}
    texts = []
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", plain)):
        answer = await client.post(path, json=body)
        if answer.status_code == 400:  # the tiny model has no chat template
            continue
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        texts.append(choice.get("text") or choice["message"]["content"])
    async with client.stream("POST", "/v1/completions", json={**plain, "stream": True}) as stream:
        async for _ in stream.aiter_lines():
            pass
    return texts


async def ask_badly(client: httpx.AsyncClient) -> None:
    """Requests that are refused in every layer, each with the mark in it."""
    prompt = {"model": "tiny", "prompt": PROMPT}
    bodies: list[Any] = [
        {**prompt, "temperature": MARK},
        {**prompt, MARK: 1},
        {**prompt, "model": MARK},
        {**prompt, "max_tokens": 10**9},
        {**prompt, "prompt": PROMPT * 20000},
        {**prompt, "structured_outputs": {"regex": f"({MARK}"}},
        {**prompt, "structured_outputs": {"json": {"type": MARK}}},
        {**prompt, "speculation": {"drafter": MARK}},
        {**prompt, "stop": [MARK] * 100},
        {"model": "tiny", "messages": [{"role": MARK, "content": PROMPT}]},
    ]
    refused = 0
    for body in bodies:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        status = (await client.post(path, json=body)).status_code
        assert status < 500
        refused += status >= 400
    assert refused >= len(bodies) - 1  # fields that are not known are left alone
    for content in (f'{{"prompt": "{MARK}"', f'{{"prompt": "{MARK}", "prompt": 1}}', MARK):
        answer = await client.post(
            "/v1/completions", content=content, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400
    assert (await client.get(f"/{MARK}?q={MARK}")).status_code == 404
    client.headers["authorization"] = f"Bearer {STRANGER}"
    assert (await client.post("/v1/completions", json=prompt)).status_code == 401
    client.headers["authorization"] = f"Bearer {KEY}"


async def ask_over_grpc(address: str) -> str:
    """A generation that ends, one that is left, bytes that are no message; the first one's text."""
    key = (("authorization", f"Bearer {KEY}"),)
    request = generation_pb2.GenerateRequest(prompt=PROMPT)
    request.stop.max_tokens, request.stop.ignore_eos = 24, True
    text = ""
    async with aio.insecure_channel(address) as channel:
        stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
        async for event in stub.Generate(request, timeout=60, metadata=key):
            text += event.delta.text
        request.stop.max_tokens = 400
        left = stub.Generate(request, timeout=60, metadata=key)
        await left.read()
        left.cancel()
        raw = channel.unary_stream("/outrider.v1.Generation/Generate")
        with pytest.raises(aio.AioRpcError):
            [one async for one in raw(b"\x0a" + MARK.encode(), timeout=60, metadata=key)]
        with pytest.raises(aio.AioRpcError) as caught:
            [one async for one in stub.Generate(request, timeout=60, metadata=(("authorization", STRANGER),))]
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    return text


def written(stack: Stack, sink: OtlpSink) -> dict[str, str]:
    """All that the services have said, by where."""
    said = {f"log of {name}": service.log.read_text() for name, service in stack.services.items()}
    said["spans"] = "\n".join(map(repr, sink.spans))
    for name, service in stack.services.items():
        if not service.expected_to_die:
            said[f"metrics of {name}"] = httpx.get(f"{service.page}/metrics", trust_env=False).text
    said["health"] = httpx.get(f"{stack.http}/health", trust_env=False).text
    return said


async def test_no_prompt_answer_or_secret_is_written_or_told(stack: Stack, sink: OtlpSink) -> None:
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "request-of-the-test"}
    async with httpx.AsyncClient(base_url=stack.http, timeout=60, headers=headers, trust_env=False) as client:
        texts = await ask_well(client)
        await ask_badly(client)
    texts.append(await ask_over_grpc(stack.grpc))
    stack["twin"].kill()
    async with httpx.AsyncClient(base_url=stack.http, timeout=60, headers=headers, trust_env=False) as client:
        texts += await ask_well(client)
    spans = await asyncio.to_thread(sink.wait, lambda spans: any(span.name == "verify" for span in spans))
    assert spans
    said = written(stack, sink)
    assert all(len(text) > 3 for text in said.values()), "each of them says something"
    assert "debug" in stack.config["telemetry"]["log_level"]
    answers = [
        form for text in texts if len(text) > 8 for form in (text, repr(text)[1:-1], json.dumps(text)[1:-1])
    ]
    assert answers
    for secret in (MARK, PASSWORD, TOKEN, KEY, STRANGER, hash_of(KEY), *answers):
        assert [place for place, text in said.items() if secret in text] == [], secret


def test_the_configuration_that_is_shown_names_files_and_holds_no_token(stack: Stack) -> None:
    from outrider.config import dump_config, load_config

    path: Path = stack.folder / "gateway.yaml"
    shown = dump_config(load_config(path))
    assert str(stack.folder / "token") in shown
    assert TOKEN not in shown and KEY not in shown
