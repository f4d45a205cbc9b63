"""Draft models that propose trees, as processes of their own: the output is what it is without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.wire.v1 import common_pb2, generation_pb2
from tests.killing import killed_and_back
from tests.stack import Stack
from tests.tiny_models import make_tiny
from tests.traffic import PROMPT, Generated, ask, connected, generate, generate_all

PROMPTS = (PROMPT, "What is the capital of France?", "def add(first, second): return first + second\n" * 9)
TREES = {"chain": "chain", "static": "3,2,1", "dynamic": "dynamic"}
DEPTH = 3


def make_noised(folder: Path, model: Path, noise: float) -> Path:
    """A copy of `model` with noise on its weights, in units of their spread: a draft model of some use."""
    folder.mkdir(parents=True)
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    generator = torch.Generator().manual_seed(5)
    weights = load_file(model / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim > 1:
            weights[name] = weight + noise * weight.std() * torch.randn(weight.shape, generator=generator)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("trees")
    target = make_tiny("llama", folder / "target")
    noised = make_noised(folder / "noised", target, 0.12)
    engine = {"dtype": "float32", "threads": 1, "prefill_chunk": 64}
    draft = engine | {"model": str(noised), "pool_tokens": 8192, "tree_nodes": 12, "run_ahead": 2}
    config: dict[str, Any] = {
        "model": str(target),
        "served_name": "tiny",
        "verifier": engine | {"pool_tokens": 16384, "draft_length": DEPTH, "patience_ms": 20_000},
        "drafters": {name: draft | {"tree": tree} for name, tree in TREES.items()},
    }
    with Stack(folder, config) as running:
        yield running


async def _off(stack: Stack, **request: Any) -> list[Generated]:
    async with connected(stack.grpc) as stub:
        return await generate_all(stub, [ask(prompt, drafter=None, **request) for prompt in PROMPTS])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_on_is_off(stack: Stack, temperature: float) -> None:
    """All shapes and all prompts at once."""
    request: dict[str, Any] = {"temperature": temperature, "max_tokens": 60}
    off = await _off(stack, **request)
    async with connected(stack.grpc) as stub:
        on = await generate_all(
            stub, [ask(prompt, drafter=name, **request) for name in TREES for prompt in PROMPTS]
        )
    for index, got in enumerate(on):
        name = tuple(TREES)[index // len(PROMPTS)]
        assert got.token_ids == off[index % len(PROMPTS)].token_ids, name
        assert (got.stats.draft_tokens > DEPTH * got.stats.drafts) == (name != "chain"), name
        assert got.stats.accepted_tokens > 0, name


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
        for got in await generate_all(stub, [wanted(name) for name in TREES]):
            assert got.token_ids == off.token_ids
            assert got.stats.draft_tokens > 0


@pytest.mark.parametrize("rule", ["ACCEPTANCE_TOKEN", "ACCEPTANCE_BLOCK"])
async def test_other_rules_of_acceptance(stack: Stack, rule: str) -> None:
    requests = [ask(drafter=name, temperature=1.0, max_tokens=40) for name in TREES]
    for request in requests:
        request.speculation.acceptance = common_pb2.Acceptance.Value(rule)
    async with connected(stack.grpc) as stub:
        for got in await generate_all(stub, requests):
            assert len(got.token_ids) == 40
            assert got.stats.accepted_tokens > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_trees_bring_more_tokens_a_round_than_chains(stack: Stack, temperature: float) -> None:
    """With the same depth. Nobody misses a deadline here, so the rounds are always the same."""
    rounds = {}
    async with connected(stack.grpc) as stub:
        for name in TREES:
            requests = [
                ask(prompt, drafter=name, temperature=temperature, seed=seed, max_tokens=80)
                for prompt in PROMPTS
                for seed in ((7,) if temperature == 0.0 else (7, 8))
            ]
            got = await generate_all(stub, requests)
            rounds[name] = sum(own.stats.accepted_tokens for own in got)
            assert all(len(own.token_ids) == 80 for own in got)
    assert rounds["static"] > rounds["chain"]
    assert rounds["dynamic"] > rounds["chain"]


@pytest.mark.parametrize("name", ["static", "dynamic"])
async def test_killed_in_mid_stream_and_back(stack: Stack, name: str) -> None:
    request: dict[str, Any] = {"temperature": 1.0, "max_tokens": 300}
    (expected, *_) = await _off(stack, **request)
    await killed_and_back(stack, name, expected, **request)
