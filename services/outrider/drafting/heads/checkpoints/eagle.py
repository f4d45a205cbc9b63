"""EAGLE checkpoints in the layout of github.com/SafeAILab/EAGLE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from outrider.core.errors import ConfigError
from outrider.drafting.heads.weights import EagleWeights, HeadConfig, LayerWeights, LinearWeights

_State = dict[str, torch.Tensor]


def load_eagle(folder: Path) -> EagleWeights:
    """The head in `folder`, of whichever kind it is.

    Raises:
        ConfigError: config.json or a tensor is missing or unreadable.
    """
    config = _read_config(folder)
    state = _read_state(folder)
    try:
        return _from_state(config, state)
    except KeyError as error:
        raise ConfigError(f"{folder} is no EAGLE checkpoint: {error.args[0]} is missing") from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no object")
    return config


def _read_state(folder: Path) -> _State:
    state: _State = {}
    try:
        for path in sorted(folder.glob("*.safetensors")):
            state |= load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"the weights of {folder} cannot be read: {error}") from error
    return state


def _from_state(config: dict[str, Any], state: _State) -> EagleWeights:
    eagle3 = "midlayer.self_attn.q_proj.weight" in state
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    d2t = state.get("d2t")
    names = ["midlayer"] if eagle3 else [f"layers.{index}" for index in range(config["num_hidden_layers"])]
    return EagleWeights(
        HeadConfig(
            kind="eagle3" if eagle3 else "eagle",
            hidden_size=hidden,
            target_hidden_size=config.get("target_hidden_size", hidden),
            vocab_size=config["vocab_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or hidden // heads,
            rms_norm_eps=config["rms_norm_eps"],
            rope_parameters=_rope(config),
            norm_output=bool(config.get("norm_output", False)),
        ),
        fc=_linear(state, "fc"),
        layers=tuple(_layer(state, name) for name in names),
        embedding=state.get("embed_tokens.weight"),
        head=state["lm_head.weight"] if eagle3 else state.get("lm_head.weight"),
        norm=state["norm.weight"] if eagle3 else state.get("norm.weight"),
        embedding_norm=state.get("embedding_norm.weight"),
        draft_ids=None if d2t is None else d2t.long() + torch.arange(len(d2t)),
    )


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("rope_parameters"):
        return dict(config["rope_parameters"])
    scaling = dict(config.get("rope_scaling") or {})
    kind = scaling.pop("type", None)
    scaling.setdefault("rope_type", kind or "default")
    return scaling | {"rope_theta": config.get("rope_theta", 10000.0)}


def _layer(state: _State, name: str) -> LayerWeights:
    return LayerWeights(
        query=_linear(state, f"{name}.self_attn.q_proj"),
        key=_linear(state, f"{name}.self_attn.k_proj"),
        value=_linear(state, f"{name}.self_attn.v_proj"),
        output=_linear(state, f"{name}.self_attn.o_proj"),
        mlp_norm=state[f"{name}.post_attention_layernorm.weight"],
        gate=_linear(state, f"{name}.mlp.gate_proj"),
        up=_linear(state, f"{name}.mlp.up_proj"),
        down=_linear(state, f"{name}.mlp.down_proj"),
        input_norm=state.get(f"{name}.input_layernorm.weight"),
        hidden_norm=state.get(f"{name}.hidden_norm.weight"),
    )


def _linear(state: _State, name: str) -> LinearWeights:
    return LinearWeights(state[f"{name}.weight"], state.get(f"{name}.bias"))
