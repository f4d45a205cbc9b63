"""Streams that break go on at another gateway, whose verifier is another one: all they share is the store."""

from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from outrider.client import AsyncClient, Connection, GenerationDelta, GenerationStarted
from tests.integration.gateway.real_stack import real_addresses
from tests.integration.gateway.sse_events import first_events, folded, read_events
from tests.servers import redis_server
from tests.tiny_models import make_tiny

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = {"prompt": "The quick brown fox"}
MESSAGES = {"messages": [{"role": "user", "content": "hello"}]}
USAGE = {"stream_options": {"include_usage": True}}
NOW = [{"type": "function", "function": {"name": "now"}}]
CASES = {
    "chat": (CHAT, {**MESSAGES, **USAGE}),
    "chat_with_log_probabilities": (CHAT, {**MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2, **USAGE}),
    "tools": (CHAT, {**MESSAGES, "tools": NOW, "tool_choice": "required", "max_tokens": 40}),
    "completion": (COMPLETIONS, {**PROMPT, **USAGE}),
    "completion_with_all": (
        COMPLETIONS,
        {**PROMPT, "n": 2, "echo": True, "logprobs": 1, "return_token_ids": True, **USAGE},
    ),
    "prompt_log_probabilities": (COMPLETIONS, {**PROMPT, "prompt_logprobs": 1}),
}


def body_of(case: str) -> tuple[str, dict]:
    path, fields = CASES[case]
    return path, {"model": "tiny", "stream": True, "max_tokens": 12, "ignore_eos": True, "seed": 7} | fields


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny("llama", tmp_path_factory.mktemp("tiny") / "model")


@asynccontextmanager
async def two_stacks(folder: Path):
    """Addresses of two gateways, each over a verifier of its own."""
    with redis_server() as redis:
        store = {"kind": "redis", "url": redis.url}
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(real_addresses(folder, store=store)) for _ in range(2)]


@pytest.fixture
async def pair(folder):
    """HTTP clients of both gateways."""
    async with AsyncExitStack() as stack:
        addresses = await stack.enter_async_context(two_stacks(folder))
        yield [
            await stack.enter_async_context(httpx.AsyncClient(base_url=one["http"], timeout=60))
            for one in addresses
        ]


@pytest.mark.parametrize("case", CASES)
async def test_cut_behind_any_event_it_is_the_undisturbed_stream(pair, case):
    first, second = pair
    path, body = body_of(case)
    undisturbed = await read_events(first, path, body)
    whole = folded(undisturbed)
    for position, (event_id, _) in enumerate(undisturbed, start=1):
        rest = await read_events(second, path, body, event_id)
        assert folded(undisturbed[:position] + rest) == whole, f"behind event {position}, {event_id}"


@pytest.mark.parametrize("case", CASES)
async def test_cut_while_it_runs_it_is_the_undisturbed_stream(pair, case):
    first, second = pair
    path, body = body_of(case)
    undisturbed = await read_events(first, path, body)
    whole = folded(undisturbed)
    for count in range(1, len(undisturbed)):
        async with first_events(first, path, body, count) as seen:
            pass
        rest = await read_events(second, path, body, seen[-1][0])
        again = folded(seen + rest)
        assert again["id"] != whole["id"]
        assert said(again) == said(whole), f"behind event {count}"


def said(answer: dict) -> dict:
    """All but what is another one in each answer."""
    choices = {
        index: {**choice, "calls": [call[1:] for call in choice.get("calls", ())]}
        for index, choice in answer["choices"].items()
    }
    return {**answer, "id": "", "created": 0, "choices": choices}


async def test_a_stop_string_ends_a_resumed_stream_where_it_ends_any(pair):
    first, second = pair
    path, body = body_of("completion")
    text = folded(await read_events(first, path, body))["choices"][0]["text"]
    body |= {"stop": text[len(text) // 2 : len(text) // 2 + 3]}
    undisturbed = await read_events(first, path, body)
    assert folded(undisturbed)["choices"][0]["finish_reason"] == ["stop"]
    for position, (event_id, _) in enumerate(undisturbed, start=1):
        rest = await read_events(second, path, body, event_id)
        assert folded(undisturbed[:position] + rest) == folded(undisturbed), f"behind event {position}"


async def test_a_client_goes_on_when_its_gateway_is_gone(folder):
    with redis_server() as redis:
        store = {"kind": "redis", "url": redis.url}
        async with AsyncExitStack() as both:
            second = await both.enter_async_context(real_addresses(folder, store=store))
            alone = await both.enter_async_context(AsyncClient(second["grpc"]))
            options = {"max_tokens": 200, "seed": 7, "ignore_eos": True, "logprobs": 1}
            whole = await alone.generate("The quick brown fox", **options)
            async with AsyncExitStack() as dying:
                first = await dying.enter_async_context(real_addresses(folder, store=store))
                connection = Connection((first["grpc"], second["grpc"]))
                client = await both.enter_async_context(AsyncClient(connection))
                stream = client.stream("The quick brown fox", **options)
                events = [await anext(stream), await anext(stream)]
                assert isinstance(events[0], GenerationStarted)
                stopping = dying.pop_all()
            await stopping.aclose()
            events += [event async for event in stream]
    deltas = [event for event in events if isinstance(event, GenerationDelta)]
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [one for delta in deltas for one in delta.logprobs] == whole.logprobs
