"""EAGLE checkpoints exactly as they are published, and what is refused of them, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from outrider.core.errors import ConfigError, UnsupportedModelError
from outrider.drafting.heads.checkpoints import load_eagle
from outrider.drafting.heads.weights import EagleWeights
from tests.tiny_eagle import make_tiny_eagle, tiny_config, tiny_state, tiny_weights

State = dict[str, torch.Tensor]


def write(folder: Path, config: dict[str, Any], state: State) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    return folder


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__slots__") and hasattr(one, "__dataclass_fields__"):
        names = one.__dataclass_fields__
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return one == other


def speculators_eagle3(**fields: Any) -> tuple[dict[str, Any], State]:
    """As `Eagle3DraftModel.save_pretrained` writes it: the layers' config without transformers' defaults."""
    plain = tiny_config("eagle3", columns=300)
    state = {name.replace("midlayer.", "layers.0."): own for name, own in tiny_state(plain).items()}
    state["embed_tokens.weight"] = torch.randn(512, 64, generator=torch.Generator().manual_seed(3))
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 300,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 1,
            "head_dim": 16,
            "vocab_size": 512,
            "rms_norm_eps": 1e-05,
        },
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "target"}},
        "speculators_version": "0.3.0",
    }
    return config | fields, state


@pytest.mark.parametrize("layers", [1, 2])
def test_safeailab_eagle(tmp_path: Path, layers: int) -> None:
    config = tiny_config("eagle") | {"num_hidden_layers": layers}
    weights = load_eagle(write(tmp_path, config, tiny_state(config)))
    assert same(weights, tiny_weights(config, tiny_state(config)))


def test_safeailab_eagle3(tmp_path: Path) -> None:
    config = tiny_config("eagle3", columns=300)
    weights = load_eagle(write(tmp_path, config, tiny_state(config)))
    assert same(weights, tiny_weights(config, tiny_state(config)))


def test_pickled_weights_load_without_running_anything(tmp_path: Path) -> None:
    config = tiny_config("eagle")
    write(tmp_path, config, {})
    (tmp_path / "model.safetensors").unlink()
    torch.save(tiny_state(config), tmp_path / "pytorch_model.bin")
    assert same(load_eagle(tmp_path), tiny_weights(config, tiny_state(config)))


class _Harmful:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return eval, ("1 / 0",)


def test_pickles_that_run_code_are_refused(tmp_path: Path) -> None:
    write(tmp_path, tiny_config("eagle"), {})
    (tmp_path / "model.safetensors").unlink()
    torch.save({"fc.weight": _Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin cannot be read"):
        load_eagle(tmp_path)


def test_weights_in_several_files(tmp_path: Path) -> None:
    config = tiny_config("eagle")
    state = tiny_state(config)
    write(tmp_path, config, {})
    (tmp_path / "model.safetensors").unlink()
    for number, names in enumerate((sorted(state)[:5], sorted(state)[5:])):
        save_file(
            {name: state[name] for name in names}, tmp_path / f"model-0000{number}-of-00002.safetensors"
        )
    assert same(load_eagle(tmp_path), tiny_weights(config, state))


def test_speculators_eagle3(tmp_path: Path) -> None:
    config, state = speculators_eagle3()
    weights = load_eagle(write(tmp_path, config, state))
    plain = tiny_weights(tiny_config("eagle3", columns=300), tiny_state(tiny_config("eagle3", columns=300)))
    assert same(weights.layers, plain.layers)
    assert same(weights.draft_ids, plain.draft_ids)
    assert weights.embedding is not None
    assert weights.config.feature_layers == (2, 4, 5)
    assert weights.config.norm_before_residual
    assert weights.config.rms_norm_eps == 1e-5
    assert weights.config.rope_parameters["rope_theta"] == 10000.0


def test_speculators_eagle3_may_norm_what_it_joins(tmp_path: Path) -> None:
    config, state = speculators_eagle3(norm_before_fc=True)
    state["input_norm.weight"] = torch.ones(192)
    assert load_eagle(write(tmp_path, config, state)).fc_norm is not None


def test_speculators_eagle3_may_norm_each_state(tmp_path: Path) -> None:
    config, state = speculators_eagle3(fc_norm=True, norm_output=True)
    state |= {f"fc_norm.{index}.weight": torch.full((64,), index + 1.0) for index in range(3)}
    weights = load_eagle(write(tmp_path, config, state))
    assert [float(norm[0]) for norm in weights.state_norms] == [1.0, 2.0, 3.0]
    assert weights.config.norm_output
    del state["fc_norm.2.weight"]
    with pytest.raises(ConfigError, match=r"fc_norm\.2\.weight is missing"):
        load_eagle(write(tmp_path, config, state))


def test_speculators_eagle3_of_a_wider_target(tmp_path: Path) -> None:
    config, state = speculators_eagle3(target_hidden_size=80)
    state["fc.weight"] = torch.randn(64, 240)
    assert load_eagle(write(tmp_path, config, state)).config.target_hidden_size == 80


@pytest.mark.parametrize("norms", [False, True])
def test_speculators_eagle(tmp_path: Path, norms: bool) -> None:
    """As `EagleSpeculator.save_pretrained` writes it, embeddings and output head being the verifier's."""
    plain = tiny_state(tiny_config("eagle"))
    state = {name.replace("layers.0.", "transformer."): own for name, own in plain.items()}
    state = {name.replace("fc.", "fusion_fc."): own for name, own in state.items()}
    del state["embed_tokens.weight"]
    if norms:
        for name in ("embedding_layernorm", "pre_lm_head_layernorm", "transformer.input_layernorm"):
            state[f"{name}.weight"] = torch.rand(64)
    config, _ = speculators_eagle3()
    config |= {"speculators_model_type": "eagle", "layernorms": norms, "fusion_bias": True}
    weights: EagleWeights = load_eagle(write(tmp_path, config, state))
    assert weights.config.kind == "eagle"
    assert weights.embedding is weights.head is None
    assert (weights.norm is not None) == (weights.embedding_norm is not None) == norms
    assert (weights.layers[0].input_norm is not None) == norms
    assert same(weights.fc.bias, plain["fc.bias"])


def test_layers_of_sglang_are_the_last_before_the_state(tmp_path: Path) -> None:
    config = tiny_config("eagle3", columns=300)
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}
    assert load_eagle(write(tmp_path, config, tiny_state(config))).config.feature_layers == (2, 15, 27)


def test_rope_scaling_is_kept(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    folder = make_tiny_eagle("eagle", tmp_path, rope_scaling=scaling, rope_theta=5000.0)
    rope = load_eagle(folder).config.rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["rope_theta"]) == ("linear", 2.0, 5000.0)


def _without(name: str) -> Callable[[State], None]:
    def spoil(state: State) -> None:
        del state[name]

    return spoil


def _with(name: str, tensor: torch.Tensor) -> Callable[[State], None]:
    return lambda state: state.update({name: tensor})


SPOILED = {
    "missing": (_without("midlayer.hidden_norm.weight"), r"layers\.0\.input_layernorm|fc\.weight has shape"),
    "missing head": (_without("lm_head.weight"), r"lm_head\.weight is missing"),
    "shape": (
        _with("midlayer.self_attn.q_proj.weight", torch.ones(64, 64)),
        r"\(64, 64\), expected 64 x 128",
    ),
    "fc": (_with("fc.weight", torch.ones(64, 128)), r"fc\.weight has shape \(64, 128\), expected 64 x 192"),
    "columns": (_with("lm_head.weight", torch.ones(200, 64)), r"\(200, 64\), expected 300 x 64"),
    "unknown": (_with("midlayer.gate.weight", torch.ones(1)), r"midlayer\.gate\.weight not known"),
    "range": (_with("d2t", torch.full((300,), 400)), "ids from 400 to 699, expected 0 to 511"),
    "twice": (_with("d2t", -torch.arange(300)), "the same id from several"),
    "d2t type": (_with("d2t", torch.zeros(300)), "type torch.float32, expected whole numbers"),
    "t2d": (_with("t2d", torch.ones(512, dtype=torch.bool)), "name different ids"),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_what_is_wrong_is_named(tmp_path: Path, fault: str) -> None:
    spoil, message = SPOILED[fault]
    config = tiny_config("eagle3", columns=300)
    state = tiny_state(config)
    spoil(state)
    with pytest.raises(ConfigError, match=message):
        load_eagle(write(tmp_path, config, state))


CONFIGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "kind": ({"speculators_model_type": "mtp"}, UnsupportedModelError, "'mtp', not eagle or eagle3"),
    "layers": ({"model_type": "gpt2"}, UnsupportedModelError, "'gpt2' are not supported"),
    "window": (
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0, "sliding_window": 64},
        UnsupportedModelError,
        "sliding window",
    ),
    "activation": ({"hidden_act": "gelu"}, UnsupportedModelError, "'gelu' is not supported"),
    "heads": ({"num_attention_heads": 0}, ConfigError, r"config\.json: num_attention_heads is 0"),
    "sizes": ({"hidden_size": "64"}, ConfigError, "hidden_size is '64'"),
    "states": ({"eagle_aux_hidden_state_layer_ids": "all"}, ConfigError, "expected a list of layers"),
    "width": ({"target_hidden_size": "wide"}, ConfigError, "target_hidden_size is 'wide'"),
}


@pytest.mark.parametrize("fault", CONFIGS)
def test_what_is_wrong_with_the_config_is_named(tmp_path: Path, fault: str) -> None:
    fields, error, message = CONFIGS[fault]
    config = tiny_config("eagle3", columns=300)
    with pytest.raises(error, match=message):
        load_eagle(write(tmp_path, config | fields, tiny_state(config)))


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_unreadable_configs(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_eagle(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("eagle")), encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no weights"):
        load_eagle(tmp_path)
