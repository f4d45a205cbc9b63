"""EAGLE heads as processes of their own, fed by a real verifier: the output is what it is without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.wire.v1 import common_pb2, generation_pb2
from tests.killing import killed_and_back
from tests.stack import Stack
from tests.tiny_eagle import make_follower, make_tiny_eagle, make_unthinking
from tests.tiny_models import make_tiny
from tests.traffic import PROMPT, Generated, ask, connected, generate, generate_all

PROMPTS = (PROMPT, "What is the capital of France?", "def add(first, second): return first + second\n" * 9)
HEADS = ("chain", "tree", "dynamic", "eagle1")


def _head(model: Path, tree: str) -> dict[str, Any]:
    return {
        "method": "eagle",
        "model": str(model),
        "dtype": "float32",
        "threads": 1,
        "pool_tokens": 4096,
        "prefill_chunk": 64,
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
    """A target of eight layers with random heads of both kinds."""
    folder = tmp_path_factory.mktemp("heads")
    target = make_tiny("llama", folder / "target", layers=8)
    eagle3 = make_tiny_eagle("eagle3", folder / "eagle3", columns=300)
    eagle1 = make_tiny_eagle("eagle", folder / "eagle1")
    drafters = {
        "chain": _head(eagle3, "chain"),
        "tree": _head(eagle3, "3,2,1"),
        "dynamic": _head(eagle3, "dynamic"),
        "eagle1": _head(eagle1, "2,1,1"),
        "cramped": _head(eagle3, "2,1,1") | {"pool_tokens": 512, "max_sessions": 6},
    }
    with Stack(folder, _config(target, drafters)) as running:
        yield running


async def _off(stack: Stack, **request: Any) -> list[Generated]:
    async with connected(stack.grpc) as stub:
        return [await generate(stub, ask(prompt, drafter=None, **request)) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_on_is_off(stack: Stack, temperature: float) -> None:
    """All heads and all prompts at once, prompts longer than a chunk among them."""
    request: dict[str, Any] = {"temperature": temperature, "max_tokens": 48}
    off = await _off(stack, **request)
    async with connected(stack.grpc) as stub:
        on = await generate_all(
            stub, [ask(prompt, drafter=name, **request) for name in HEADS for prompt in PROMPTS]
        )
    for index, got in enumerate(on):
        name = HEADS[index // len(PROMPTS)]
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
        for got in await generate_all(stub, [wanted(name) for name in HEADS]):
            assert got.token_ids == off.token_ids
            assert got.stats.draft_tokens > 0


@pytest.mark.parametrize("rule", ["ACCEPTANCE_TOKEN", "ACCEPTANCE_BLOCK"])
async def test_other_rules_of_acceptance(stack: Stack, rule: str) -> None:
    """Another output of the same law, whose proof needs no more than that drafts say what they drew."""
    requests = [ask(drafter=name, temperature=1.0, max_tokens=40) for name in HEADS]
    for request in requests:
        request.speculation.acceptance = common_pb2.Acceptance.Value(rule)
    async with connected(stack.grpc) as stub:
        for got in await generate_all(stub, requests):
            assert len(got.token_ids) == 40
            assert got.stats.draft_tokens > 0


async def test_more_sessions_than_a_head_has_room_for(stack: Stack) -> None:
    """Sessions give way to one another in the drafter; each one's output is what it is alone."""
    request: dict[str, Any] = {"temperature": 1.0, "max_tokens": 60}
    off = await _off(stack, **request)
    async with connected(stack.grpc) as stub:
        on = await generate_all(stub, [ask(prompt, drafter="cramped", **request) for prompt in PROMPTS * 5])
    for index, got in enumerate(on):
        assert got.token_ids == off[index % len(PROMPTS)].token_ids
    assert sum(got.stats.draft_tokens for got in on) > 0


@pytest.mark.parametrize("name", ["tree", "eagle1"])
async def test_killed_in_mid_stream_and_back(stack: Stack, name: str) -> None:
    """A session goes on without its head, and is opened again in mid-text once the head is back."""
    request: dict[str, Any] = {"temperature": 1.0, "max_tokens": 300}
    (expected, *_) = await _off(stack, **request)
    await killed_and_back(stack, name, expected, **request)


@pytest.mark.parametrize(("tree", "expected"), [("chain", 4.0), ("2,1,1", 4.0)])
async def test_what_a_head_foretells_is_accepted(tmp_path: Path, tree: str, expected: float) -> None:
    """A head that knows the target's next tokens: every round commits the whole depth and the bonus."""
    target = make_unthinking(make_tiny("llama", tmp_path / "target", layers=3))
    follower = make_follower(tmp_path / "head", target)
    with Stack(tmp_path / "stack", _config(target, {"follower": _head(follower, tree)})) as stack:
        async with connected(stack.grpc) as stub:
            off = await generate(stub, ask(drafter=None, max_tokens=60))
            on = await generate(stub, ask(drafter="follower", max_tokens=60))
    assert on.token_ids == off.token_ids
    assert on.stats.accepted_tokens >= on.stats.drafts * (expected - 1) - expected
