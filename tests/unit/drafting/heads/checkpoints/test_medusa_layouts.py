"""Medusa checkpoints exactly as they are published, and what is refused of them, by name."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from outrider.core.errors import ConfigError, UnsupportedModelError
from outrider.drafting.heads.checkpoints import load_medusa
from outrider.drafting.heads.medusa_weights import MedusaWeights
from tests.tiny_medusa import ReferenceHeads, State, medusa_config, write_medusa

HEADS, HIDDEN, COLUMNS = 3, 64, 512


def heads(layers: int = 1) -> tuple[ReferenceHeads, State]:
    reference = ReferenceHeads.random(HEADS, layers)
    return reference, dict(reference.state_dict())


def check(weights: MedusaWeights, reference: ReferenceHeads, *, bias: bool = True) -> None:
    """All of the heads' tensors, bit for bit."""
    assert (weights.hidden_size, len(weights.blocks)) == (HIDDEN, HEADS)
    for own, head in zip(weights.blocks, reference, strict=True):
        assert len(own) == len(head) - 1
        for block, published in zip(own, head, strict=False):
            assert torch.equal(block.weight, published.linear.weight)
            assert (block.bias is not None) == bias
            assert block.bias is None or torch.equal(block.bias, published.linear.bias)
    for output, head in zip(weights.outputs, reference, strict=False):
        assert torch.equal(output, head[-1].weight)


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pt"])
def test_fasterdecoding(tmp_path: Path, layers: int, pickled: bool) -> None:
    reference, state = heads(layers)
    weights = load_medusa(write_medusa(tmp_path, medusa_config(HEADS, layers), state, pickled=pickled))
    check(weights, reference)
    assert len(weights.outputs) == HEADS
    assert (weights.draft_ids, weights.vocab_size) == (None, 0)
    assert weights.base_model == "lmsys/vicuna-7b-v1.3"


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
def test_merged_with_its_target(tmp_path: Path, pickled: bool) -> None:
    """As medusa-1.0-zephyr: a whole model in shards, whose config.json is the target's."""
    reference, state = heads()
    whole = {f"medusa_head.{name}": own.clone() for name, own in state.items()} | {
        "model.embed_tokens.weight": torch.zeros(COLUMNS, HIDDEN),
        "model.norm.weight": torch.zeros(HIDDEN),
        "lm_head.weight": torch.zeros(COLUMNS, HIDDEN),
    }
    config = medusa_config(HEADS, hidden_size=HIDDEN, num_hidden_layers=2, vocab_size=COLUMNS)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for number in (0, 1):
        shard = dict(list(whole.items())[number::2])
        stem = f"0000{number + 1}-of-00002"
        if pickled:
            torch.save(shard, tmp_path / f"pytorch_model-{stem}.bin")
        else:
            save_file(shard, tmp_path / f"model-{stem}.safetensors")
    weights = load_medusa(tmp_path)
    check(weights, reference)
    assert (len(weights.outputs), weights.vocab_size) == (HEADS, COLUMNS)


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_without_output_heads(tmp_path: Path, layers: int) -> None:
    """As `outrider train` writes them: the target's own output head, over a draft vocabulary."""
    reference, state = heads(layers)
    state = {name: own for name, own in state.items() if name != f"{name[0]}.{layers}.weight"}
    if not layers:
        return  # nothing would be left
    write_medusa(tmp_path, medusa_config(HEADS, layers, hidden_size=HIDDEN, draft_vocab_size=3), state)
    ids = torch.tensor([500, 3, 77], dtype=torch.int32)
    save_file({"draft_vocabulary": ids}, tmp_path / "draft_vocabulary.safetensors")
    weights = load_medusa(tmp_path)
    check(weights, reference)
    assert weights.outputs == ()
    assert weights.draft_ids is not None
    assert weights.draft_ids.tolist() == [3, 77, 500]


def vllm(state: State, layers: int = 1, **fields: Any) -> tuple[dict[str, Any], State]:
    """As vLLM's `MedusaConfig` and `Medusa` have it: blocks without bias."""
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": HIDDEN,
        "vocab_size": COLUMNS,
        "num_heads": HEADS,
        "num_hidden_layers": layers,
        "max_paths": 64,
        "topk": 10,
        "truncated_vocab_size": COLUMNS,
    }
    renamed: State = {}
    for head in range(HEADS):
        for layer in range(layers):
            renamed[f"blocks.{head}.layers.{layer}.weight"] = state[f"{head}.{layer}.linear.weight"]
        renamed[f"lm_heads.{head}.weight"] = state[f"{head}.{layers}.weight"]
    return config | fields, renamed


@pytest.mark.parametrize("layers", [1, 2])
def test_vllm(tmp_path: Path, layers: int) -> None:
    reference, state = heads(layers)
    weights = load_medusa(write_medusa(tmp_path, *vllm(state, layers)))
    check(weights, reference, bias=False)
    assert (len(weights.outputs), weights.vocab_size) == (HEADS, COLUMNS)


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
def test_vllm_with_one_output_head(tmp_path: Path, name: str) -> None:
    reference, state = heads()
    config, state = vllm(state, original_lm_head=True)
    shared = state["lm_heads.0.weight"]
    state = {own: value for own, value in state.items() if not own.startswith("lm_heads")} | {name: shared}
    weights = load_medusa(write_medusa(tmp_path, config, state))
    check(weights, reference, bias=False)
    assert len(weights.outputs) == 1


@pytest.mark.parametrize("cut", [False, True], ids=["whole heads", "cut heads"])
def test_vllm_with_a_draft_vocabulary(tmp_path: Path, cut: bool) -> None:
    reference, state = heads()
    ids = torch.tensor([9, 4, 200, 511])
    config, state = vllm(state, truncated_vocab_size=4)
    if cut:
        state = {name: own[ids] if name.startswith("lm_heads") else own for name, own in state.items()}
    weights = load_medusa(write_medusa(tmp_path, config, state | {"token_map": ids}))
    assert weights.draft_ids is not None
    assert weights.draft_ids.tolist() == [4, 9, 200, 511]
    for output, head in zip(weights.outputs, reference, strict=True):
        assert torch.equal(output, head[-1].weight[weights.draft_ids])


def test_more_heads_than_config_says(tmp_path: Path) -> None:
    """Medusa itself loads them so."""
    _, state = heads()
    weights = load_medusa(write_medusa(tmp_path, medusa_config(2), state))
    assert len(weights.blocks) == len(weights.outputs) == 2
    config = {name: value for name, value in medusa_config().items() if name != "medusa_num_heads"}
    assert len(load_medusa(write_medusa(tmp_path, config, state)).blocks) == HEADS


Spoil = Callable[[dict[str, Any], State], object]
FAULTS: dict[str, tuple[Spoil, str]] = {
    "missing block": (lambda _, state: state.pop("1.0.linear.weight"), r"1\.0\.linear\.weight is missing"),
    "missing output": (lambda _, state: state.pop("2.1.weight"), r"2\.1\.weight is missing"),
    "missing first": (lambda _, state: state.pop("0.0.linear.weight"), r"0\.0\.linear\.weight is missing"),
    "unknown": (
        lambda _, state: state.update({"0.2.linear.weight": torch.zeros(4)}),
        r"0\.2\.linear\.weight not known",
    ),
    "shape of a block": (
        lambda _, state: state.update({"1.0.linear.weight": torch.zeros(64, 32)}),
        r"1\.0\.linear\.weight has shape \(64, 32\), expected 64 x 64",
    ),
    "shape of a bias": (
        lambda _, state: state.update({"1.0.linear.bias": torch.zeros(32)}),
        r"1\.0\.linear\.bias has shape \(32,\), expected 64",
    ),
    "columns that differ": (
        lambda _, state: state.update({"1.1.weight": torch.zeros(500, 64)}),
        r"1\.1\.weight has shape \(500, 64\), expected 512 x 64",
    ),
    "too few heads": (
        lambda config, _: config.update(medusa_num_heads=4),
        r"3\.0\.linear\.weight is missing",
    ),
    "no heads": (lambda _, state: state.clear(), "medusa_num_heads|missing|no weights"),
    "heads": (lambda config, _: config.update(medusa_num_heads=65), "medusa_num_heads is 65"),
    "number": (lambda config, _: config.update(medusa_num_heads="five"), "medusa_num_heads is 'five'"),
    "width": (
        lambda config, _: config.update(hidden_size=32),
        r"0\.0\.linear\.weight has shape \(64, 64\), expected 32 x 32",
    ),
    "ids that repeat": (
        lambda _, state: state.update({"token_map": torch.tensor([1, 1])}),
        "token_map must hold different ids",
    ),
    "ids below 0": (
        lambda _, state: state.update({"token_map": torch.tensor([-1, 1])}),
        "token_map must hold different ids",
    ),
    "ids of another type": (
        lambda _, state: state.update({"token_map": torch.tensor([0.5])}),
        "token_map has type torch.float32",
    ),
    "ids past the heads": (
        lambda _, state: state.update({"token_map": torch.tensor([1, 600])}),
        "512 rows, which are neither those of the 2 draft ids nor of all ids up to 600",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_named(tmp_path: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    config, (_, state) = medusa_config(), heads()
    spoil(config, state)
    with pytest.raises(ConfigError, match=message):
        load_medusa(write_medusa(tmp_path, config, state))


def test_another_kind_of_head_is_refused(tmp_path: Path) -> None:
    write_medusa(tmp_path, {"speculators_model_type": "eagle3"}, heads()[1])
    with pytest.raises(UnsupportedModelError, match="'eagle3', not medusa"):
        load_medusa(tmp_path)


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code of the checkpoint ran",))


def _with_code() -> bytes:
    file = io.BytesIO()
    torch.save({"0.0.linear.weight": _Code()}, file)
    return file.getvalue()


@pytest.mark.parametrize("content", [b"", b"text", _with_code()], ids=["empty", "text", "code"])
def test_what_is_no_checkpoint_is_not_run(
    tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(medusa_config()), encoding="utf-8")
    (tmp_path / "medusa_lm_head.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"medusa_lm_head\.pt"):
        load_medusa(tmp_path)
    assert "code of the checkpoint ran" not in capfd.readouterr().out


def test_two_files_with_the_same_head_are_refused(tmp_path: Path) -> None:
    _, state = heads()
    write_medusa(tmp_path, medusa_config(), state)
    save_file({f"medusa_head.{name}": own for name, own in state.items()}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"stands there twice, again in model\.safetensors"):
        load_medusa(tmp_path)
