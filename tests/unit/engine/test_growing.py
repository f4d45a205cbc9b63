"""A tree that grows over several steps leaves the same bits as one that runs at once."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from outrider.config.schema import EngineConfig
from outrider.core.errors import InternalError
from outrider.core.trees import TokenTree
from outrider.engine.api import SequenceHandle, StepItem
from outrider.engine.engine import Engine
from tests.tiny_models import make_tiny
from tests.unit.engine.stepping import run_chain

KINDS = (("llama", True), ("mistral", True), ("gemma2", False))
DTYPES = ("bfloat16", "float32")
LENGTHS = (1, 40, 509)  # committed tokens: the last one's trees cross a KV length of 512


@cache
def engine_of(kind: str, lean: bool, dtype: str) -> Engine:
    folder = make_tiny(kind, Path(mkdtemp(prefix="tiny")) / kind)
    config = EngineConfig(dtype=dtype, pool_tokens=8192, threads=1, prefix_cache=False)
    engine = Engine.load(folder, config, lean=lean)
    assert engine.batch_invariance == "exact"
    return engine


def big_tree(generator: random.Random, nodes: int) -> TokenTree:
    """Random, with one root, siblings different."""
    ids, parents = [generator.randrange(512)], [-1]
    while len(ids) < nodes:
        token, parent = generator.randrange(512), generator.randrange(max(0, len(ids) - 12), len(ids))
        if (parent, token) not in zip(parents, ids, strict=True):
            ids.append(token)
            parents.append(parent)
    return TokenTree(tuple(ids), tuple(parents))


def plain(engine: Engine, tokens: list[int], tree: TokenTree) -> list[torch.Tensor]:
    """Logits after each node, by running its path one token at a time."""
    sequence = engine.open(tokens)
    run_chain(engine, sequence, tokens)
    rows: list[torch.Tensor] = []
    for node in range(len(tree)):
        path = [tree.token_ids[index] for index in tree.path_to(node)]
        for token in path:
            last = run_chain(engine, sequence, [token])[0]
        rows.append(last)
        engine.rollback(sequence, len(tokens))
    engine.release(sequence)
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "lean"), KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_grown_trees_have_the_bits_of_plain_decoding(kind: str, lean: bool, dtype: str, length: int) -> None:
    engine = engine_of(kind, lean, dtype)
    generator = random.Random(length)
    tokens = [[generator.randrange(512) for _ in range(length)] for _ in range(2)]
    trees = [big_tree(generator, size) for size in (40, 17)]
    want = [plain(engine, *both) for both in zip(tokens, trees, strict=True)]
    sequences: list[SequenceHandle] = [engine.open(own) for own in tokens]
    for sequence, own in zip(sequences, tokens, strict=True):
        run_chain(engine, sequence, own)
    ran = [0, 0]
    while any(done < len(tree) for done, tree in zip(ran, trees, strict=True)):
        items = []
        for which, tree in enumerate(trees):
            stop = min(len(tree), ran[which] + generator.randrange(1, 9))
            if stop > ran[which]:
                assert engine.reserve(sequences[which], stop)
                items.append((which, StepItem(sequences[which], tree.truncated(stop), ran=ran[which])))
        output = engine.step([item for _, item in items])
        for (which, item), rows in zip(items, output.rows, strict=True):
            assert torch.equal(output.logits[rows], torch.stack(want[which][item.ran : len(item.tree)]))
            ran[which] = len(item.tree)
    for which, sequence in enumerate(sequences):
        leaf = len(trees[which]) - 1
        path = trees[which].path_to(leaf)
        engine.commit(sequence, path)
        after = run_chain(engine, sequence, [7])
        decoded = [*tokens[which], *(trees[which].token_ids[node] for node in path), 7]
        assert torch.equal(after, _alone(engine, decoded))
        engine.release(sequence)
    assert engine.pool.used == 0


def _alone(engine: Engine, tokens: list[int]) -> torch.Tensor:
    """Logits after the last token."""
    sequence = engine.open(tokens)
    logits = run_chain(engine, sequence, tokens)[-1:]
    engine.release(sequence)
    return logits


def test_only_what_the_last_step_left_may_be_left_out() -> None:
    engine = engine_of("llama", True, "float32")
    sequence = engine.open([1, 2, 3])
    run_chain(engine, sequence, [1, 2, 3])
    assert engine.reserve(sequence, 8)
    tree = TokenTree((4, 5, 6), (-1, 0, 0))
    with pytest.raises(InternalError, match="in place"):
        engine.step([StepItem(sequence, tree, ran=1)])
    engine.step([StepItem(sequence, tree)])
    grown = TokenTree((4, 5, 6, 7), (-1, 0, 0, 2))
    others = TokenTree((4, 9, 6, 7), (-1, 0, 0, 2)), TokenTree((4, 5, 6, 7), (-1, 0, 1, 2))
    for other in others:
        with pytest.raises(InternalError, match="in place"):
            engine.step([StepItem(sequence, other, ran=3)])
    for ran in (-1, 4):
        with pytest.raises(InternalError, match="no tokens"):
            engine.step([StepItem(sequence, grown, ran=ran)])
    output = engine.step([StepItem(sequence, grown, ran=3, logits="last")])
    assert output.logits.shape[0] == 1 and output.rows == [slice(0, 1)]
    engine.commit(sequence, [0, 2, 3])
    assert list(sequence.token_ids) == [1, 2, 3, 4, 6, 7]
    with pytest.raises(InternalError, match="in place"):
        engine.step([StepItem(sequence, grown, ran=3)])
    engine.release(sequence)
