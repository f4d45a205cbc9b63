"""Medusa heads as processes of their own, fed by a real verifier: the output is what it is without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.wire.v1 import common_pb2, generation_pb2
from tests.killing import killed_and_back
from tests.stack import Stack
from tests.tiny_eagle import make_unthinking
from tests.tiny_medusa import make_foretelling, make_tiny_medusa
from tests.tiny_models import make_tiny
from tests.traffic import PROMPT, Generated, ask, connected, generate, generate_all

PROMPTS = (PROMPT, "What is the capital of France?", "def add(first, second): return first + second\n" * 9)
DRAFTERS = ("chain", "tree", "dynamic")


def _heads(model: Path, tree: str) -> dict[str, Any]:
    return {
        "method": "medusa",
        "model": str(model),
        "dtype": "float32",
        "threads": 1,
        "tree": tree,
        "tree_nodes": 12,
    }


def _config(target: Path, drafters: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
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
        "drafters": drafters,
    }


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("medusa")
    target = make_tiny("llama", folder / "target")
    heads = make_tiny_medusa(folder / "heads")
    drafters = {
        "chain": _heads(heads, "chain"),
        "tree": _heads(heads, "3,2,1"),
        "dynamic": _heads(heads, "dynamic"),
    }
    with Stack(folder, _config(target, drafters)) as running:
        yield running


async def _off(stack: Stack, **request: Any) -> list[Generated]:
    async with connected(stack.grpc) as stub:
        return [await generate(stub, ask(prompt, drafter=None, **request)) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_on_is_off(stack: Stack, temperature: float) -> None:
    """All shapes and all prompts at once, a prompt longer than a chunk among them."""
    request: dict[str, Any] = {"temperature": temperature, "max_tokens": 48}
    off = await _off(stack, **request)
    async with connected(stack.grpc) as stub:
        requests = [ask(prompt, drafter=name, **request) for name in DRAFTERS for prompt in PROMPTS]
        on = await generate_all(stub, requests)
    for index, got in enumerate(on):
        name = DRAFTERS[index // len(PROMPTS)]
        assert got.token_ids == off[index % len(PROMPTS)].token_ids, name
        # More draft tokens a round than the depth: trees.
        assert (got.stats.draft_tokens > 3 * got.stats.drafts) == (name != "chain"), name


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_on_is_off_with_a_grammar_and_penalties(stack: Stack, temperature: float) -> None:
    def wanted(drafter: str | None) -> generation_pb2.GenerateRequest:
        request = ask(drafter=drafter, temperature=temperature, max_tokens=40, ignore_eos=False)
        edits = request.sampling.edits
        edits.grammar.kind = common_pb2.GRAMMAR_KIND_REGEX
        edits.grammar.text = "([a-z]{1,8} ){5,12}"
        edits.repetition_penalty = 1.3
        edits.presence_penalty = 0.4
        return request

    async with connected(stack.grpc) as stub:
        off = await generate(stub, wanted(None))
        for got in await generate_all(stub, [wanted(name) for name in DRAFTERS]):
            assert got.token_ids == off.token_ids
            assert got.stats.draft_tokens > 0


@pytest.mark.parametrize("rule", ["ACCEPTANCE_TOKEN", "ACCEPTANCE_BLOCK"])
async def test_other_rules_of_acceptance(stack: Stack, rule: str) -> None:
    requests = [ask(drafter=name, temperature=1.0, max_tokens=40) for name in DRAFTERS]
    for request in requests:
        request.speculation.acceptance = common_pb2.Acceptance.Value(rule)
    async with connected(stack.grpc) as stub:
        for got in await generate_all(stub, requests):
            assert len(got.token_ids) == 40
            assert got.stats.draft_tokens > 0


async def test_killed_in_mid_stream_and_back(stack: Stack) -> None:
    """A session goes on without its heads, and is opened again in mid-text once they are back."""
    request: dict[str, Any] = {"temperature": 1.0, "max_tokens": 300}
    (expected, *_) = await _off(stack, **request)
    await killed_and_back(stack, "tree", expected, **request)


@pytest.mark.parametrize("tree", ["chain", "2,1,1"])
async def test_what_heads_foretell_is_accepted(tmp_path: Path, tree: str) -> None:
    """Heads that know a target which goes round in a circle: from then on a round commits 4 tokens."""
    target = make_unthinking(make_tiny("llama", tmp_path / "target"))
    heads = make_foretelling(tmp_path / "heads", target)
    with Stack(tmp_path / "stack", _config(target, {"heads": _heads(heads, tree)})) as stack:
        async with connected(stack.grpc) as stub:
            off = await generate(stub, ask(drafter=None, max_tokens=120))
            on = await generate(stub, ask(drafter="heads", max_tokens=120))
    assert on.token_ids == off.token_ids
    # All but the tokens before the circle, the first one and what max_tokens cut off.
    assert on.stats.accepted_tokens >= 3 * (120 - _before_circle(off.token_ids)) // 4 - 6


def _before_circle(token_ids: list[int]) -> int:
    """Tokens that never come again in a sequence whose next token depends on the last one alone."""
    return sum(token_id not in token_ids[index + 1 :] for index, token_id in enumerate(token_ids[:60]))
