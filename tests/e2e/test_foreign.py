"""Draft models with another tokenizer as processes of their own: the output is what it is without them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.wire.v1 import common_pb2, generation_pb2
from tests.foreign_tokenizers import byte_level, make_character_twins
from tests.stack import Stack
from tests.tiny_models import make_tiny
from tests.traffic import Generated, ask, connected, generate, generate_all

PROMPTS = ("The quick brown fox", "def add(first, second):\n    return first + second\n" * 6)
REQUESTS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.7, "seed": 6, "top_p": 0.9},
)


def _draft(model: Path, **more: Any) -> dict[str, Any]:
    common = {"method": "draft_model", "dtype": "float32", "threads": 1, "pool_tokens": 8192}
    return {**common, "model": str(model), "prefill_chunk": 64, **more}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A target of characters; its twin under other ids; a model of words and bytes, with a short context."""
    folder = tmp_path_factory.mktemp("foreign")
    target, twin = make_character_twins(folder / "twins")
    words = make_tiny("llama", folder / "words", vocab_size=400, seed=3, layers=1, max_position=256)
    byte_level(400).save(str(words / "tokenizer.json"))
    config = {
        "model": str(target),
        "served_name": "tiny",
        "verifier": {
            "dtype": "float32",
            "threads": 1,
            "pool_tokens": 16384,
            "prefill_chunk": 64,
            "draft_length": 3,
            "patience_ms": 2000,
        },
        "drafters": {
            "twin": _draft(twin),
            "ahead": _draft(twin, run_ahead=4),
            "words": _draft(words),
        },
    }
    with Stack(folder / "stack", config) as running:
        yield running


def asking(
    prompt: str, drafter: str | None, *, max_tokens: int, **sampling: Any
) -> generation_pb2.GenerateRequest:
    """A request with these sampling parameters."""
    request = ask(prompt, drafter=drafter, max_tokens=max_tokens)
    for name, value in sampling.items():
        place = request.sampling.edits if name.endswith("_penalty") else request.sampling
        setattr(place, name, value)
    return request


async def on_and_off(stack: Stack, **request: Any) -> dict[str, list[Generated]]:
    """Answers of each drafter, all of them side by side, which must be those without speculation."""
    names = ("twin", "ahead", "words")
    async with connected(stack.grpc) as stub:
        off = [await generate(stub, asking(prompt, None, **request)) for prompt in PROMPTS]
        on = await generate_all(
            stub, [asking(prompt, name, **request) for name in names for prompt in PROMPTS]
        )
    for index, got in enumerate(on):
        assert got.token_ids == off[index % len(PROMPTS)].token_ids
        assert got.text == off[index % len(PROMPTS)].text
    return {name: on[2 * index : 2 * index + 2] for index, name in enumerate(names)}


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda own: f"T={own['temperature']}")
async def test_on_is_off_and_the_twin_is_always_right(stack: Stack, request_: dict[str, Any]) -> None:
    got = await on_and_off(stack, max_tokens=80, **request_)
    for name in ("twin", "ahead"):
        for one in got[name]:
            assert one.stats.accepted_tokens == one.stats.draft_tokens > 0
    assert sum(one.stats.draft_tokens for one in got["words"]) > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_penalties_are_the_targets_in_the_draft_too(stack: Stack, temperature: float) -> None:
    got = await on_and_off(
        stack, max_tokens=60, temperature=temperature, seed=9, repetition_penalty=1.3, frequency_penalty=0.5
    )
    for one in got["twin"]:
        assert one.stats.accepted_tokens == one.stats.draft_tokens > 0


async def test_a_session_outgrows_the_draft_models_context(stack: Stack) -> None:
    """`words` holds 256 of its own tokens; the session goes on to 400 of the target's."""
    await on_and_off(stack, max_tokens=400, temperature=1.0, seed=2)


async def test_a_drafter_killed_in_mid_stream_changes_nothing(stack: Stack) -> None:
    request: dict[str, Any] = {"temperature": 1.0, "seed": 12, "max_tokens": 300}
    killed = False

    def kill(seen: Generated) -> None:
        nonlocal killed
        if not killed and len(seen.token_ids) > 20:
            killed = True
            stack["twin"].kill()

    async with connected(stack.grpc) as stub:
        expected = await generate(stub, asking(PROMPTS[0], None, **request))
        got = await generate(stub, asking(PROMPTS[0], "twin", **request), on_delta=kill)
        stack["twin"].start()
        stack["twin"].wait_serving()
        async with asyncio.timeout(60):  # the verifier tries to reach it again now and then
            while not (
                again := await generate(stub, asking(PROMPTS[0], "twin", **request))
            ).stats.accepted_tokens:
                assert again.token_ids == expected.token_ids
    assert killed
    assert got.token_ids == again.token_ids == expected.token_ids


@pytest.mark.parametrize("rule", ["ACCEPTANCE_TOKEN", "ACCEPTANCE_BLOCK"])
async def test_other_rules_take_its_drafts_as_chosen(stack: Stack, rule: str) -> None:
    """By these rules drafts are by text, and none says what it was drawn from: the law is the target's."""
    requests = [asking(PROMPTS[0], name, max_tokens=40, temperature=1.0) for name in ("twin", "words")]
    for request in requests:
        request.speculation.acceptance = common_pb2.Acceptance.Value(rule)
    async with connected(stack.grpc) as stub:
        twin, words = await generate_all(stub, requests)
    assert len(twin.token_ids) == len(words.token_ids) == 40
    assert twin.stats.accepted_tokens > 0
