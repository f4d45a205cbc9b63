"""A token's logits are the same bits whatever it runs with: batch, chunks, trees, prefix reuse, rollback."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.config.schema import EngineConfig
from outrider.core.trees import TokenTree
from outrider.engine.api import SequenceHandle, StepItem
from outrider.engine.engine import Engine
from outrider.engine.plan import PackedPart
from outrider.engine.probe import is_batch_invariant
from tests.tiny_models import make_tiny
from tests.unit.engine.stepping import logits_of

LENGTH = 528  # past one KV length of 512
SINGLES = 32  # the last tokens of the reference run one by one
MODELS = [
    ("llama", True),
    ("qwen3", True),
    ("mistral", True),
    ("llama", False),
    ("gpt2", False),
    ("gemma2", False),
]
DTYPES = ("bfloat16", "float32")


class Case:
    """An engine and, for some token sequences, the logits of plain decoding."""

    def __init__(self, kind: str, lean: bool, dtype: str, *, micro_batch: int = 0) -> None:
        folder = make_tiny(kind, Path(mkdtemp(prefix="tiny")) / kind)
        # 1 thread: the machine that runs the tests may be busy; kernels are chosen by shape and thread count.
        config = EngineConfig(dtype=dtype, pool_tokens=8192, threads=1)
        self.engine = Engine.load(folder, config, lean=lean)
        self.engine._micro_batch = micro_batch
        generator = random.Random(3)
        self.tokens = [[generator.randrange(512) for _ in range(LENGTH)] for _ in range(2)]
        self.tokens[1][:100] = self.tokens[0][:100]  # a prefix to share
        self.want = []
        for tokens in self.tokens:
            self.want.append(logits_of(self.engine, tokens, chunk=60, singles=SINGLES))
            self.engine.clear_prefix_cache()


@cache
def case(kind: str, lean: bool, dtype: str) -> Case:
    return Case(kind, lean, dtype)


def random_tree(generator: random.Random, truth: list[int]) -> tuple[TokenTree, list[int]]:
    """A tree that starts with the true next token, and the path in it that follows the truth."""
    ids, parents, path = [truth[0]], [-1], [0]
    for _ in range(generator.randrange(8)):
        parent = generator.randrange(len(ids))
        right = parent == path[-1] and len(path) < len(truth) and generator.random() < 0.7
        token = truth[len(path)] if right else generator.randrange(512)
        known = (parent, token) in set(zip(parents, ids, strict=True))
        by_chance = not right and parent in path and token in truth
        if known or by_chance:
            continue
        if right:
            path.append(len(ids))
        ids.append(token)
        parents.append(parent)
    return TokenTree(tuple(ids), tuple(parents)), path


def play(case: Case, generator: random.Random) -> None:
    """Run some sequences to their end in random company and compare every committed row."""
    engine = case.engine
    live: list[tuple[int, SequenceHandle]] = [
        (which, engine.open(case.tokens[which]))
        for which in (generator.randrange(2) for _ in range(generator.choice((1, 2, 3, 5))))
    ]
    while any(sequence.kv_len < LENGTH for _, sequence in live):
        items, checks = [], []
        for which, sequence in live:
            if sequence.kv_len > 30 and generator.random() < 0.1:
                engine.rollback(sequence, sequence.kv_len - generator.randrange(25))
            start = sequence.kv_len
            left = case.tokens[which][start:]
            if not left or generator.random() < 0.1:
                continue
            tree, path = random_tree(generator, left)
            if generator.random() < 0.6:
                count = min(len(left), generator.choice((1, 3, 20, 70, 150)))
                tree, path = TokenTree.chain(left[:count]), list(range(count))
            assert engine.reserve(sequence, len(tree))
            items.append(StepItem(sequence, tree))
            checks.append((which, start, path))
        output = engine.step(items) if items else None
        for item, (which, start, path), rows in zip(
            items, checks, output.rows if output else [], strict=True
        ):
            assert output is not None
            want = case.want[which][start : start + len(path)]
            assert torch.equal(output.logits[rows][path], want), f"rows {start}+{path} of {len(items)} items"
            engine.commit(item.sequence, path)
    for _, sequence in live:
        engine.release(sequence)
    assert engine.pool.used == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "lean"), MODELS)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), clear=st.booleans())
def test_same_bits_in_any_company(kind: str, lean: bool, dtype: str, seed: int, clear: bool) -> None:
    tried = case(kind, lean, dtype)
    assert tried.engine.batch_invariance == "exact"
    if clear:
        tried.engine.clear_prefix_cache()
    play(tried, random.Random(seed))


@pytest.mark.parametrize("micro_batch", [8, 1])
def test_the_slow_way_is_exact_too_and_close_to_the_fast_one(micro_batch: int) -> None:
    fast = case("llama", True, "float32")
    slow = Case("llama", True, "float32", micro_batch=micro_batch)
    assert (slow.want[0] - fast.want[0]).abs().max() < 1e-4
    play(slow, random.Random(5))


def test_the_probe_tries_a_full_prefill_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(dtype="float32", pool_tokens=1024, threads=1, prefix_cache=False)
    engine = Engine.load(make_tiny("llama", tmp_path / "llama"), config)
    forward = engine._forward

    def spoil(parts: list[PackedPart], wanted: list[int]) -> torch.Tensor:
        output = forward(parts, wanted)
        if sum(len(part.nodes) for part in parts) >= 256:
            engine._runner.store.layers[0].mul_(1.01)
        return output

    assert is_batch_invariant(engine, engine._stored, chunk=256) and engine.pool.used == 0
    monkeypatch.setattr(engine, "_forward", spoil)
    assert not is_batch_invariant(engine, engine._stored, chunk=256)
    assert is_batch_invariant(engine, engine._stored, chunk=128) and engine.pool.used == 0


def test_the_probe_leaves_out_what_there_is_no_room_for(tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "llama", max_position=128)
    config = EngineConfig(dtype="float32", pool_tokens=256, threads=1, prefill_chunk=4096)
    assert Engine.load(folder, config).batch_invariance == "exact"
