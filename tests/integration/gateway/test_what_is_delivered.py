"""Text, ids, log-probabilities and counts that a client gets: the same with speculation and without."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx
import pytest

from outrider.wire import channels, services
from outrider.wire.v1 import common_pb2
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.real_stack import real_addresses
from tests.tiny_models import make_tiny

DRAFTERS = ("twin", "lookup")
PROMPTS = ("The quick brown fox", "What is the capital of", "def add(first, second):")
SAMPLINGS = ({"temperature": 0.0}, {"temperature": 0.9, "seed": 5})


@dataclass
class Answer:
    """A whole answer, as a client sees it."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[str] = field(default_factory=list)
    reason: int = 0
    completion_tokens: int = 0

    def check(self, finished: pb.GenerationFinished, accepted: int) -> None:
        """Counts say what was delivered, and nothing more."""
        stats = finished.speculation
        assert finished.usage.completion_tokens == len(self.ids)
        assert accepted == stats.accepted_tokens <= min(len(self.ids), stats.draft_tokens)
        assert finished.usage.cached_prompt_tokens <= finished.usage.prompt_tokens


@dataclass
class Client:
    """Asks over gRPC and over HTTP."""

    grpc: services.GenerationClient
    http: httpx.AsyncClient
    accepted: int = 0  # draft tokens in all answers

    async def ask(self, prompt: str, drafter: str, **fields) -> Answer:
        """One answer; `drafter` "": speculation off."""
        stop = {"max_tokens": 40, "ignore_eos": True} | fields.pop("stop", {})
        speculation = {"enabled": bool(drafter), "drafter": drafter}
        fields = {"logprobs": {"top": 2}} | fields
        asked = pb.GenerateRequest(prompt=prompt, stop=stop, speculation=speculation, **fields)
        answer, accepted = Answer(), 0
        async for event in self.grpc.Generate(asked, timeout=60):
            answer.text += event.delta.text
            answer.ids += event.delta.token_ids
            answer.logprobs += [entry.SerializeToString(deterministic=True) for entry in event.delta.logprobs]
            accepted += event.delta.accepted
            assert len(event.delta.logprobs) == (len(event.delta.token_ids) if fields["logprobs"] else 0)
        answer.reason = event.finished.reason
        answer.completion_tokens = event.finished.usage.completion_tokens
        answer.check(event.finished, accepted)
        self.accepted += accepted
        return answer

    async def ask_all(self, wanted: list[dict], drafters: tuple[str, ...]) -> list[Answer]:
        """All side by side, each with the next drafter."""
        asking = (self.ask(drafter=drafters[i % len(drafters)], **one) for i, one in enumerate(wanted))
        return await asyncio.gather(*asking)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny("llama", tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
async def client(folder):
    drafters = {"twin": {"method": "draft_model"}, "lookup": {"method": "prompt_lookup"}}
    async with (
        real_addresses(folder, drafters=drafters, verifier={"pool_tokens": 16384}) as addresses,
        channels.open_channel(addresses["grpc"]) as channel,
        httpx.AsyncClient(base_url=addresses["http"], timeout=60) as http,
    ):
        yield Client(services.generation_client(channel), http)


async def compare(client: Client, wanted: list[dict]) -> list[Answer]:
    """With speculation all is as without, eight at a time; gives the answers."""
    off = await client.ask_all(wanted, ("",))
    for start in range(0, len(wanted), 8):
        part = wanted[start : start + 8]
        assert await client.ask_all(part, DRAFTERS) == off[start : start + 8]
        assert await client.ask_all(part, DRAFTERS[::-1]) == off[start : start + 8]
    return off


@pytest.mark.parametrize("include", [False, True])
async def test_stop_strings_across_rounds_cut_text_ids_and_logprobs_alike(client, include):
    for prompt, sampling in zip(PROMPTS, (*SAMPLINGS, SAMPLINGS[1]), strict=True):
        full = await client.ask(prompt, "", sampling=sampling)
        places = [(start, size) for start in range(1, len(full.text) - 6, 9) for size in (1, 2, 5)]
        stops = [full.text[start : start + size] for start, size in places][:16]
        wanted = [
            {"prompt": prompt, "sampling": sampling, "stop": {"stop": [stop], "include_stop": include}}
            for stop in stops
        ]
        for stop, answer in zip(stops, await compare(client, wanted), strict=True):
            end = full.text.index(stop)
            assert answer.text == full.text[: end + (len(stop) if include else 0)]
            assert answer.ids == full.ids[: len(answer.ids)]
            assert answer.logprobs == full.logprobs[: len(answer.ids)]
            assert answer.reason == common_pb2.FINISH_REASON_STOP
    assert client.accepted > 0


async def test_stop_strings_before_min_tokens_are_text(client):
    prompt, sampling = PROMPTS[0], SAMPLINGS[1]
    full = await client.ask(prompt, "", sampling=sampling)
    stop = full.text[2:4]
    wanted = [
        {
            "prompt": prompt,
            "sampling": sampling | {"edits": {"min_tokens": least}},
            "stop": {"stop": [stop, full.text[-6:-3]]},
        }
        for least in range(0, 40, 5)
    ]
    answers = await compare(client, wanted)
    assert answers[0].text == full.text[: full.text.index(stop)]
    for one, answer in zip(wanted, answers, strict=True):
        assert len(answer.ids) >= one["sampling"]["edits"]["min_tokens"]
        assert full.text.startswith(answer.text)


@pytest.mark.parametrize("include", [False, True])
async def test_stop_tokens_are_told_as_text_alone_if_they_are_included(client, include):
    prompt, sampling = PROMPTS[1], SAMPLINGS[1]
    full = await client.ask(prompt, "", sampling=sampling)
    firsts = [i for i in range(1, 20) if full.ids[i] not in full.ids[:i]][:8]
    stops = [{"stop_token_ids": [full.ids[i]], "include_stop": include} for i in firsts]
    answers = await compare(
        client, [{"prompt": prompt, "sampling": sampling, "stop": stop} for stop in stops]
    )
    for index, answer in zip(firsts, answers, strict=True):
        assert answer.ids == full.ids[:index] and answer.logprobs == full.logprobs[:index]
        shown = await client.ask(prompt, "", sampling=sampling, stop={"max_tokens": index + include})
        assert answer.text == shown.text


async def test_prompt_logprobs_come_before_any_token(client):
    asked = pb.GenerateRequest(
        prompt="The quick brown fox jumps over the lazy dog" * 4,
        stop={"max_tokens": 8, "ignore_eos": True},
        sampling={"temperature": 0},
        logprobs={"prompt_top": 3},
    )
    seen = []
    for enabled in (False, True, True):
        asked.speculation.enabled = enabled
        events = [event async for event in client.grpc.Generate(asked, timeout=60)]
        kinds = [event.WhichOneof("event") for event in events]
        parts = kinds.count("prompt_logprobs")
        assert kinds[: 1 + parts] == ["started", *["prompt_logprobs"] * parts] and parts >= 1
        entries = [entry for event in events for entry in event.prompt_logprobs.entries]
        assert len(entries) == events[-1].finished.usage.prompt_tokens - 1
        assert events[-1].finished.usage.cached_prompt_tokens == 0
        assert not any(event.delta.logprobs for event in events)
        seen.append([entry.SerializeToString(deterministic=True) for entry in entries])
    assert seen[0] == seen[1] == seen[2]


async def test_usage_counts_never_exceed_the_tokens_delivered(client):
    """More reasoning tokens than completion tokens elsewhere: here each part is a part of the whole."""
    full = await client.ask(PROMPTS[0], "", sampling={"temperature": 0.0})
    for stop in (full.text[3:6], full.text[7:8], full.text[20:24], None):
        for drafter in DRAFTERS:
            body = {
                "model": "tiny",
                "prompt": PROMPTS[0],
                "max_tokens": 40,
                "temperature": 0,
                "ignore_eos": True,
                "stop": stop,
                "return_token_ids": True,
                "speculation": {"drafter": drafter, "stats": True},
            }
            answer = (await client.http.post("/v1/completions", json=body)).json()
            usage, stats = answer["usage"], answer["speculation_stats"]
            details = usage["completion_tokens_details"]
            assert usage["completion_tokens"] == len(answer["choices"][0]["token_ids"])
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert 0 <= details["accepted_prediction_tokens"] <= usage["completion_tokens"]
            accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
            assert rejected >= 0 and accepted + rejected <= stats["draft_tokens"]
            assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


async def test_logprobs_with_no_alternatives_over_http_are_one_for_each_token(client):
    """`logprobs=true, top_logprobs=0`: a 500 elsewhere, "list index out of range"."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": PROMPTS[0]}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 0,
        "return_token_ids": True,
    }
    told = []
    for drafter in (None, *DRAFTERS):
        speculation = {"drafter": drafter} if drafter else {"enabled": False}
        response = await client.http.post("/v1/chat/completions", json=body | {"speculation": speculation})
        assert response.status_code == 200
        choice = response.json()["choices"][0]
        content = choice["logprobs"]["content"]
        assert len(content) == len(choice["token_ids"]) == 24
        assert all(entry["top_logprobs"] == [] and entry["logprob"] < 0 for entry in content)
        told.append(choice)
    assert told[1:] == told[:1] * len(DRAFTERS)
