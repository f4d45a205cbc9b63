"""The engine's contract: room, prefix reuse, refusal of misuse, what it says of its model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from outrider.config.schema import EngineConfig
from outrider.core.errors import ConfigError, InternalError, UnsupportedModelError
from outrider.core.features import offered
from outrider.core.trees import TokenTree
from outrider.engine.api import EngineApi, SequenceHandle, StepItem
from outrider.engine.engine import Engine
from tests.tiny_models import make_tiny
from tests.unit.engine.stepping import logits_of, run_chain

CONFIG = EngineConfig(dtype="float32", pool_tokens=256, threads=1)
TOKENS = [random.Random(0).randrange(512) for _ in range(100)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def engine(folder: Path) -> Engine:
    return Engine.load(folder, CONFIG)


def test_it_says_what_it_holds(engine: Engine) -> None:
    info = engine.info
    api: EngineApi = engine
    assert (info.model_name, info.vocab_size, info.context_length) == ("tiny-llama", 512, 2048)
    assert (info.dtype, info.hidden_size, info.num_layers) == ("float32", 64, 2)
    assert len(info.tokenizer_fingerprint) == 64
    assert engine.eos_token_ids == {2}
    assert api.features == offered(2)
    assert engine.batch_invariance == "exact"
    assert (engine.pool.total, engine.pool.used, engine.pool.ratio) == (16, 0, 0.0)


def test_a_full_pool_refuses_and_changes_nothing(engine: Engine) -> None:
    first, second = engine.open(TOKENS), engine.open(TOKENS)
    assert isinstance(first, SequenceHandle)
    assert engine.reserve(first, 200)
    used = engine.pool.used
    assert not engine.reserve(second, 100)
    assert engine.pool.used == used == 13
    engine.release(first)
    engine.release(first)
    assert engine.reserve(second, 100)


def test_cached_prefixes_give_way_to_sequences(engine: Engine) -> None:
    sequence = engine.open(TOKENS)
    run_chain(engine, sequence, TOKENS)
    engine.release(sequence)
    assert (engine.pool.used, engine.pool.cached) == (0, 6)
    other = engine.open([1])
    assert engine.reserve(other, 256)
    assert (engine.pool.used, engine.pool.cached) == (16, 0)


def test_a_shared_prefix_is_computed_once_with_the_same_bits(engine: Engine) -> None:
    want = logits_of(engine, TOKENS, chunk=30)
    again = engine.open(TOKENS)
    assert (again.cached_len, again.kv_len) == (96, 96)
    assert list(again.token_ids) == TOKENS[:96]
    assert torch.equal(run_chain(engine, again, TOKENS[96:]), want[96:])
    exact = engine.open(TOKENS[:96])
    assert exact.cached_len == 80  # the last token is left to run
    assert [engine.open(TOKENS, reuse=most).cached_len for most in (0, 15, 16, 50, 999)] == [0, 0, 16, 48, 96]


def test_writing_after_a_rollback_leaves_the_sharing_sequence_alone(engine: Engine) -> None:
    want = logits_of(engine, TOKENS, chunk=30)
    first, second = engine.open(TOKENS), engine.open(TOKENS)
    engine.rollback(second, 90)
    run_chain(engine, second, [5] * 6)
    assert torch.equal(run_chain(engine, first, TOKENS[96:]), want[96:])


def test_recompute_after_preemption_gives_the_same_bits(engine: Engine) -> None:
    sequence = engine.open(TOKENS)
    want = run_chain(engine, sequence, TOKENS)
    engine.release(sequence)
    engine.clear_prefix_cache()
    assert torch.equal(logits_of(engine, TOKENS, chunk=7), want)


def test_wanted_rows_only(engine: Engine) -> None:
    sequences = [engine.open(TOKENS) for _ in range(3)]
    for sequence in sequences:
        assert engine.reserve(sequence, 5)
    tree = TokenTree.chain(TOKENS[:5])
    output = engine.step(
        [
            StepItem(sequences[0], tree, logits="none"),
            StepItem(sequences[1], tree, logits="last"),
            StepItem(sequences[2], tree, logits="all"),
        ]
    )
    assert output.rows == [slice(0, 0), slice(0, 1), slice(1, 6)]
    assert output.logits.shape == (6, 512) and output.logits.dtype == torch.float32
    assert torch.equal(output.logits[0], output.logits[5])
    output.logits.add_(1)  # callers may change them in place


@pytest.mark.parametrize(
    ("reserved", "tree", "message"),
    [
        (0, TokenTree.chain([1]), "reserve first"),
        (16, TokenTree.chain([1, 512]), "0 to 511"),
        (16, TokenTree.chain([-1]), "0 to 511"),
        (16, TokenTree(), "no tokens"),
    ],
)
def test_misuse_of_step_is_refused(engine: Engine, reserved: int, tree: TokenTree, message: str) -> None:
    sequence = engine.open([1])
    assert engine.reserve(sequence, reserved)
    with pytest.raises(InternalError, match=message):
        engine.step([StepItem(sequence, tree)])


def test_misuse_of_sequences_is_refused(engine: Engine) -> None:
    sequence = engine.open([1])
    assert engine.reserve(sequence, 4)
    item = StepItem(sequence, TokenTree((1, 2, 3), (-1, 0, 0)))
    with pytest.raises(InternalError, match="twice"):
        engine.step([item, item])
    with pytest.raises(InternalError, match="without a step"):
        engine.commit(sequence, [0])
    engine.step([item])
    for nodes in ([0, 1, 2], [1], [0, 7]):
        with pytest.raises(InternalError, match="no path"):
            engine.commit(sequence, nodes)
    engine.commit(sequence, [0, 2])
    assert list(sequence.token_ids) == [1, 3]
    with pytest.raises(InternalError, match="roll back"):
        engine.rollback(sequence, 3)
    engine.release(sequence)
    with pytest.raises(InternalError, match="closed"):
        engine.reserve(sequence, 1)


def test_an_unsupported_architecture_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bloom"}))
    with pytest.raises(UnsupportedModelError, match=r"'bloom'.*supported are .*llama"):
        Engine.load(tmp_path, CONFIG)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="dynamic"):
        Engine.load(tmp_path, CONFIG)


def test_only_safetensors_are_loaded(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        Engine.load(tmp_path, CONFIG)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(ConfigError, match="safetensors"):
        Engine.load(tmp_path, CONFIG)
