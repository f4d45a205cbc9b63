"""Streams of the OpenAI API that broke go on at another gateway, by the id of the last event received."""

import asyncio
import itertools
import json
import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from outrider.core.errors import UnavailableError
from outrider.core.fingerprint import tokenizer_fingerprint
from tests.integration.gateway.conftest import config_for, gateway_over, say
from tests.integration.gateway.scripted_verifier import ScriptedVerifier, info_for, running
from tests.integration.gateway.sse_events import events_in, first_events, folded, read_events
from tests.unit.gateway import tokenizers_zoo as zoo
from tests.unit.gateway.test_chat_template import HERMES

TEXT = "the quick brown fox — jumps over the lazy do"
HERMES_CALL = 'now: <tool_call>{"name": "now", "arguments": {"at": 3}}</tool_call> it is late, <tool_'
TOOLS = [{"type": "function", "function": {"name": "now"}}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
USAGE = {"stream_options": {"include_usage": True}}

CASES = {
    "chat": (CHAT, {}),
    "chat_with_all": (
        CHAT,
        {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "n": 2, **USAGE},
    ),
    "chat_with_prompt_logprobs": (CHAT, {"prompt_logprobs": 1, "n": 2}),
    "completion": (COMPLETIONS, {"prompt": "hello", **USAGE}),
    "completion_with_all": (
        COMPLETIONS,
        {
            "prompt": ["hello", "there"],
            "n": 2,
            "echo": True,
            "logprobs": 1,
            "return_token_ids": True,
            **USAGE,
        },
    ),
    "seeded_with_stats": (
        COMPLETIONS,
        {"prompt": [5, 6, 7], "seed": 5, "speculation": {"stats": True}, "prompt_logprobs": 0},
    ),
    "usage_all_the_time": (
        COMPLETIONS,
        {"prompt": "x", "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "stop_string": (COMPLETIONS, {"prompt": "x", "stop": ["lazy", "zzz"], **USAGE}),
    "stop_string_included": (
        COMPLETIONS,
        {"prompt": "x", "stop": "jum", "include_stop_str_in_output": True, "min_tokens": 3},
    ),
    "held_back_to_the_end": (CHAT, {"stop": "lazy dog", "logprobs": True, **USAGE}),
    "only_echo": (COMPLETIONS, {"prompt": "hello", "echo": True, "max_tokens": 0, **USAGE}),
}


def body_of(case: str) -> tuple[str, dict]:
    path, fields = CASES[case]
    own = {"messages": MESSAGES} if path == CHAT else {}
    return path, {"model": "tiny", "stream": True, "max_tokens": 80} | own | fields


@dataclass
class Pair:
    """Two gateways over one verifier."""

    verifier: ScriptedVerifier
    first: httpx.AsyncClient
    second: httpx.AsyncClient


def verifier_of(folder: Path, text: str) -> ScriptedVerifier:
    sizes = itertools.cycle([3, 1, 4, 2])  # no two streams bring the tokens in the same rounds
    info = info_for(
        tokenizer_fingerprint(folder), vocab_size=zoo.byte_level().get_vocab_size(), context_length=4096
    )
    return ScriptedVerifier(info, lambda _: say(text, next(sizes)))


@pytest.fixture
async def pair(model_folder):
    async with two_gateways(model_folder, TEXT) as pair:
        yield pair


@pytest.fixture
async def calling(tmp_path, model_folder):
    """Their model is shown tools, and calls one."""
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(HERMES)
    async with two_gateways(folder, HERMES_CALL) as pair:
        yield pair


@asynccontextmanager
async def two_gateways(model_folder: Path, text: str):
    verifier = verifier_of(model_folder, text)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(running(verifier))
        clients = []
        for _ in range(2):
            config = config_for(model_folder, address)
            addresses, _, _ = await stack.enter_async_context(gateway_over(config))
            http = httpx.AsyncClient(base_url=addresses["http"], timeout=60)
            clients.append(await stack.enter_async_context(http))
        yield Pair(verifier, *clients)


@pytest.mark.parametrize("case", CASES)
async def test_cut_behind_any_event_it_is_the_undisturbed_stream(pair, case):
    path, body = body_of(case)
    await check_cuts(pair, path, body)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "logprobs": True, "return_token_ids": True},
        {"parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "function": {"name": "now"}}},
        {"tool_choice": "none"},
    ],
)
async def test_cut_behind_any_event_calls_of_tools_are_the_undisturbed_ones(calling, fields):
    path, body = body_of("chat")
    whole = await check_cuts(calling, path, body | {"max_tokens": 200, "tools": TOOLS} | fields)
    calls = whole["choices"][0].get("calls", [])
    assert len(calls) == (fields.get("tool_choice") != "none")


async def check_cuts(pair: Pair, path: str, body: dict) -> dict:
    undisturbed = await read_events(pair.first, path, body)
    assert len(undisturbed) > 2
    whole = folded(undisturbed)
    assert all(len(choice["finish_reason"]) == 1 for choice in whole["choices"].values())
    assert [event_id for event_id, _ in undisturbed if not event_id] == []
    for position, (event_id, _) in enumerate(undisturbed, start=1):
        rest = await read_events(pair.second, path, body, event_id)
        assert folded(undisturbed[:position] + rest) == whole, f"behind event {position}, {event_id}"
    return whole


@pytest.mark.parametrize("case", ["chat", "chat_with_all", "completion_with_all"])
async def test_cut_again_and_again_it_is_the_undisturbed_stream(pair, case):
    path, body = body_of(case)
    undisturbed = await read_events(pair.first, path, body)
    seen = undisturbed[:1]
    while True:
        rest = await read_events(pair.second, path, body, seen[-1][0])
        if not rest:
            break
        seen += rest[:2]
    assert folded(seen) == folded(undisturbed)


@pytest.mark.parametrize("abrupt", [True, False], ids=["client_gone", "taken_over"])
@pytest.mark.parametrize("case", ["chat", "chat_with_all", "completion_with_all"])
async def test_cut_while_it_runs_it_goes_on_at_another_gateway(pair, hold_at, case, abrupt):
    path, body = body_of(case)
    body["seed"] = 7
    whole = folded(await read_events(pair.first, path, body))
    hold = hold_at(pair.verifier, 2)
    async with AsyncExitStack() as older:
        seen = await older.enter_async_context(first_events(pair.first, path, body, 3))
        if abrupt:
            await older.aclose()
        hold.release.set()
        rest = await read_events(pair.second, path, body, seen[-1][0])
    again = folded(seen + rest)
    assert again["id"] == seen[0][1]["id"] != whole["id"]
    for answer in (again, whole):
        del answer["id"], answer["created"]
    assert again == whole


@pytest.fixture
def hold_at():
    """The verifier holds back all rounds from one on."""

    class Hold:
        def __init__(self, at: int) -> None:
            self.at = at
            self.release = asyncio.Event()

        async def __call__(self, session, index) -> None:
            if index >= self.at:
                await self.release.wait()

    def make(verifier, at: int) -> Hold:
        verifier.pace = Hold(at)
        return verifier.pace

    return make


async def test_a_choice_that_no_verifier_had_yet_begins_with_its_own_seed(pair):
    path, body = body_of("chat_with_all")
    undisturbed = await read_events(pair.first, path, body)
    first = undisturbed[0][0]
    response_id = first.partition("/")[0]
    assert first == f"{response_id}/0,-"
    begun = pair.verifier.sessions.pop(f"{response_id}.1").request
    del pair.verifier.store[f"{response_id}.1"]
    rest = await read_events(pair.second, path, body, first)
    assert folded(undisturbed[:1] + rest) == folded(undisturbed)
    again = pair.verifier.sessions[f"{response_id}.1"].request
    assert again.sampling.seed == begun.sampling.seed


async def refused(client: httpx.AsyncClient, path: str, body: dict, last: str) -> tuple[int, dict]:
    response = await client.post(path, json=body, headers={"Last-Event-ID": last})
    return response.status_code, response.json()["error"]


async def test_what_is_no_id_of_an_event(pair):
    path, body = body_of("completion")
    ((last, _), *_) = await read_events(pair.first, path, body)
    known = last.partition("/")[0]
    wrong = [
        "x",
        "",
        known,
        f"{known}/",
        f"{known}/x",
        f"{known}/1,",
        f"{known}/-1",
        f"{known}/1!!",
        "a" * 9000,
    ]
    wrong += [f"{known}/1/use", f"{known}/1,1", f"cmpl-{'0' * 31}/1", last.replace("cmpl-", "chatcmpl-")]
    for text in wrong:
        status, error = await refused(pair.second, path, body, text)
        assert (status, error["param"], error["type"]) == (400, "Last-Event-ID", "invalid_request_error"), (
            text
        )


async def test_another_request_cannot_go_on_with_an_answer(pair):
    path, body = body_of("completion")
    ((last, _), *_) = await read_events(pair.first, path, body)
    for change in ({"prompt": "other"}, {"max_tokens": 79}, {"seed": 1}, {"stop": "x"}, {"echo": True}):
        status, error = await refused(pair.second, path, body | change, last)
        assert (status, error["param"]) == (400, "Last-Event-ID"), change
    reordered = dict(reversed(body.items()))
    assert await read_events(pair.second, path, reordered, last)


async def test_another_request_does_not_take_an_answer_from_its_reader(pair, hold_at):
    path, body = body_of("completion")
    whole = folded(await read_events(pair.first, path, body))["choices"][0]["text"]
    hold = hold_at(pair.verifier, 2)
    async with pair.first.stream("POST", path, json=body) as stream:
        parts = stream.aiter_text()
        text = await anext(parts)
        while "\n\n" not in text:
            text += await anext(parts)
        last = events_in(text[: text.index("\n\n") + 2])[0][0]
        for change in ({"prompt": "other"}, {"seed": 1}):
            status, error = await refused(pair.second, path, body | change, last)
            assert (status, error["param"]) == (400, "Last-Event-ID")
            assert "the same body" in error["message"]
        hold.release.set()
        text += "".join([part async for part in parts])
    *events, done = events_in(text)
    assert done == ("", "[DONE]")
    told = [json.loads(data)["choices"] for _, data in events]
    assert "".join(choice["text"] for choices in told for choice in choices) == whole


async def test_an_answer_that_is_no_stream_cannot_be_resumed(pair):
    path, body = body_of("completion")
    ((last, _), *_) = await read_events(pair.first, path, body)
    del body["stream_options"]
    status, error = await refused(pair.second, path, body | {"stream": False}, last)
    assert (status, error["param"]) == (400, "Last-Event-ID")


async def test_an_answer_that_nobody_knows_is_not_found(pair):
    path, body = body_of("completion")
    status, error = await refused(pair.second, path, body, f"cmpl-{'0' * 32}/3")
    assert (status, error["code"]) == (404, "session_not_found")
    pair.verifier.refuse = UnavailableError("away")
    status, error = await refused(pair.second, path, body, f"cmpl-{'0' * 32}/3")
    assert (status, error["code"]) == (503, "unavailable")


async def test_more_tokens_than_there_are_is_an_error(pair):
    path, body = body_of("completion")
    ((last, _), *_) = await read_events(pair.first, path, body)
    headers = {"Last-Event-ID": f"{last.partition('/')[0]}/79"}
    response = await pair.second.post(path, json=body, headers=headers)
    ((_, data),) = events_in(response.text)
    assert json.loads(data)["error"]["param"] == "Last-Event-ID"


async def test_the_older_stream_of_an_answer_ends_when_it_is_resumed(pair, hold_at):
    path, body = body_of("completion")
    hold = hold_at(pair.verifier, 2)
    async with pair.first.stream("POST", path, json=body) as older:
        parts = older.aiter_text()
        text = await anext(parts)
        while "\n\n" not in text:
            text += await anext(parts)
        last = events_in(text[: text.index("\n\n") + 2])[0][0]
        async with pair.second.stream("POST", path, json=body, headers={"Last-Event-ID": last}) as newer:
            hold.release.set()
            assert (await newer.aread()).endswith(b"data: [DONE]\n\n")
        text += "".join([part async for part in parts])
    error = json.loads(events_in(text)[-1][1])["error"]
    assert (error["type"], error["code"]) == ("conflict_error", "superseded")


async def test_tokens_count_as_delivered_once_over_both_gateways(pair):
    path, body = body_of("completion")
    undisturbed = await read_events(pair.first, path, body)
    before, after = await delivered(pair.first), await delivered(pair.second)
    last = undisturbed[3][0]
    await read_events(pair.second, path, body, last)
    known = int(last.rpartition("/")[2])
    assert (await delivered(pair.first), await delivered(pair.second) - after) == (before, before - known)


async def delivered(client: httpx.AsyncClient) -> int:
    page = (await client.get("/metrics")).text
    (line,) = [one for one in page.splitlines() if one.startswith("outrider_generation_tokens_total{")]
    return int(float(line.rpartition(" ")[2]))
