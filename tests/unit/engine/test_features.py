"""Hidden states kept beside the KV are those of a plain forward, and change nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers

from outrider.config.schema import EngineConfig
from outrider.core.errors import InternalError, OverloadedError
from outrider.core.features import LAST_HIDDEN, hidden_after, offered
from outrider.core.trees import TokenTree
from outrider.engine.api import SequenceHandle, StepItem
from outrider.engine.engine import Engine
from tests.tiny_models import TINY_KINDS, make_tiny
from tests.unit.engine.stepping import logits_of, run, run_chain

LEAN = ("llama", "mistral", "qwen2", "qwen3")
WAYS = [("llama", True), ("llama", False)]
NAMES = sorted(offered(2))
TOKENS = [random.Random(0).randrange(512) for _ in range(100)]


def load(kind: str, folder: Path, *, lean: bool, dtype: str = "float32", invariance: str = "exact") -> Engine:
    config = EngineConfig(dtype=dtype, pool_tokens=512, threads=1, batch_invariance=invariance)
    return Engine.load(make_tiny(kind, folder / kind), config, lean=lean)


def rows_of(engine: Engine, sequence: SequenceHandle) -> dict[str, torch.Tensor]:
    return {name: engine.features_of(sequence, name, 0, sequence.kv_len) for name in NAMES}


def alone(engine: Engine, token_ids: Sequence[int]) -> dict[str, torch.Tensor]:
    """Features of a text that runs by itself, in one chunk, with no reuse."""
    sequence = engine.open(token_ids, reuse=0)
    run_chain(engine, sequence, token_ids)
    rows = rows_of(engine, sequence)
    engine.release(sequence)
    return rows


def same(rows: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(rows[name], want[name]) for name in NAMES)


@pytest.mark.parametrize(
    ("kind", "lean"), [(kind, False) for kind in TINY_KINDS] + [(kind, True) for kind in LEAN]
)
def test_they_are_the_models_hidden_states(kind: str, lean: bool, tmp_path: Path) -> None:
    engine = load(kind, tmp_path, lean=lean, invariance="off")
    assert engine.features == offered(2)
    engine.keep_features(NAMES)
    sequence = engine.open(TOKENS)
    run_chain(engine, sequence, TOKENS[:40])
    run_chain(engine, sequence, TOKENS[40:])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / kind, dtype=torch.float32).eval()
    last_layer: list[torch.Tensor] = []
    layers = next(m for m in model.get_decoder().children() if isinstance(m, torch.nn.ModuleList))
    layers[-1].register_forward_hook(
        lambda _, __, output: last_layer.append(output if isinstance(output, torch.Tensor) else output[0])
    )
    with torch.no_grad():
        plain = model.get_decoder()(torch.tensor([TOKENS]), output_hidden_states=True)
    want = {hidden_after(index): plain.hidden_states[index][0] for index in range(2)}
    want |= {hidden_after(2): last_layer[0][0], LAST_HIDDEN: plain.last_hidden_state[0]}
    for name, rows in rows_of(engine, sequence).items():
        assert rows.dtype == torch.bfloat16 and rows.shape == (100, engine.info.hidden_size)
        # Rounded to bf16: 8 bits of mantissa.
        assert torch.allclose(rows.float(), want[name], rtol=2**-8, atol=1e-5), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "lean"), [*WAYS, ("gemma2", False)])
def test_logits_have_the_same_bits_with_and_without(
    kind: str, lean: bool, dtype: str, tmp_path: Path
) -> None:
    engine = load(kind, tmp_path, lean=lean, dtype=dtype)
    assert engine.batch_invariance == "exact"
    want = logits_of(engine, TOKENS, chunk=100)
    engine.keep_features(NAMES)
    assert torch.equal(logits_of(engine, TOKENS, chunk=23, singles=9), want)
    engine.keep_features(())
    engine.clear_prefix_cache()
    assert torch.equal(logits_of(engine, TOKENS, chunk=23, singles=9), want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "lean"), WAYS)
def test_chunks_trees_copies_and_rollbacks_have_the_same_rows(
    kind: str, lean: bool, dtype: str, tmp_path: Path
) -> None:
    engine = load(kind, tmp_path, lean=lean, dtype=dtype)
    engine.keep_features(NAMES)
    want = alone(engine, TOKENS)

    one, other = engine.open(TOKENS, reuse=0), engine.open(TOKENS[50:], reuse=0)
    assert engine.reserve(one, 33) and engine.reserve(other, 7)
    chunks = [StepItem(one, TokenTree.chain(TOKENS[:33])), StepItem(other, TokenTree.chain(TOKENS[50:57]))]
    engine.step(chunks)
    engine.commit(one, range(33))
    engine.commit(other, range(7))

    wrong = (TOKENS[33] + 1) % 512
    tree = TokenTree((TOKENS[33], wrong, TOKENS[34], wrong, TOKENS[35], wrong), (-1, 0, 0, 1, 2, 2))
    assert engine.reserve(one, 6)
    engine.step([StepItem(one, tree), StepItem(other, TokenTree.chain([5]))])
    before = engine.features_of(one, NAMES[0], 30, 36, [0, 2, 4])
    engine.commit(one, [0, 2, 4])
    assert torch.equal(before, engine.features_of(one, NAMES[0], 30, 36))
    assert torch.equal(before, want[NAMES[0]][30:36])

    # What was committed wrongly is rolled back and run again, in a shared block too.
    run_chain(engine, one, [wrong] * 9)
    engine.rollback(one, 30)
    run_chain(engine, one, TOKENS[30:])
    assert same(rows_of(engine, one), want)
    sharing = engine.open(TOKENS)
    assert sharing.cached_len == 96
    engine.rollback(sharing, 90)
    run_chain(engine, sharing, TOKENS[90:])
    assert same(rows_of(engine, sharing), want)
    assert same(rows_of(engine, one), want)


def test_a_grown_tree_keeps_the_rows_of_all_its_steps(tmp_path: Path) -> None:
    engine = load("llama", tmp_path, lean=True)
    engine.keep_features(NAMES)
    want = alone(engine, TOKENS)
    sequence = engine.open(TOKENS, reuse=0)
    run_chain(engine, sequence, TOKENS[:60])
    tree = TokenTree((TOKENS[60], 9, TOKENS[61], TOKENS[62]), (-1, -1, 0, 2))
    for ran, stop in ((0, 2), (2, 3), (3, 4)):
        assert engine.reserve(sequence, stop)
        engine.step([StepItem(sequence, tree.truncated(stop), ran=ran)])
    engine.commit(sequence, [0, 2, 3])
    rows = rows_of(engine, sequence)
    assert all(torch.equal(rows[name], want[name][:63]) for name in NAMES)


@pytest.mark.parametrize("micro_batch", [8, 1])
def test_the_slow_way_keeps_them_too(micro_batch: int, tmp_path: Path) -> None:
    engine = load("llama", tmp_path, lean=True)
    engine._micro_batch = micro_batch
    engine.keep_features(NAMES)
    want = alone(engine, TOKENS)
    sequence = engine.open(TOKENS, reuse=0)
    for start in range(0, 100, 20):
        run_chain(engine, sequence, TOKENS[start : start + 20])
    assert same(rows_of(engine, sequence), want)


def test_what_is_new_is_zero_in_old_slots_and_whole_in_new_sequences(tmp_path: Path) -> None:
    engine = load("llama", tmp_path, lean=True)
    old = engine.open(TOKENS)
    run_chain(engine, old, TOKENS[:50])
    engine.keep_features([LAST_HIDDEN])
    run_chain(engine, old, TOKENS[50:])
    rows = engine.features_of(old, LAST_HIDDEN, 0, 100)
    new = engine.open(TOKENS)
    assert new.cached_len == 0  # what is cached has no such rows
    run_chain(engine, new, TOKENS)
    want = engine.features_of(new, LAST_HIDDEN, 0, 100)
    assert not rows[:50].any() and torch.equal(rows[50:], want[50:])
    # The same again, or less, forgets nothing.
    engine.keep_features([LAST_HIDDEN])
    third = engine.open(TOKENS)
    assert third.cached_len == 96
    assert torch.equal(engine.features_of(third, LAST_HIDDEN, 0, 96), want[:96])


def test_misuse_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load("llama", tmp_path, lean=True)
    with pytest.raises(InternalError, match=r"hidden_9.*not offered"):
        engine.keep_features([LAST_HIDDEN, "hidden_9"])
    engine.keep_features([LAST_HIDDEN])
    sequence = engine.open(TOKENS)
    run(engine, sequence, TokenTree.chain(TOKENS[:10]), range(10))
    with pytest.raises(InternalError, match="not kept"):
        engine.features_of(sequence, "hidden_1", 0, 1)
    for start, stop in ((-1, 3), (3, 2), (0, 11)):
        with pytest.raises(InternalError, match="only the first 10"):
            engine.features_of(sequence, LAST_HIDDEN, start, stop)
    with pytest.raises(InternalError, match="last step"):
        engine.features_of(sequence, LAST_HIDDEN, 0, 11, [0])
    engine.release(sequence)
    with pytest.raises(InternalError, match="closed"):
        engine.features_of(sequence, LAST_HIDDEN, 0, 1)

    def full(*_: object) -> torch.Tensor:
        raise MemoryError

    monkeypatch.setattr("outrider.engine.features.zeros", full)
    with pytest.raises(OverloadedError, match="no memory for features"):
        engine.keep_features([LAST_HIDDEN, "hidden_1"])
    assert set(engine._features.names) == {LAST_HIDDEN}
