"""EAGLE checkpoints as they are published, by SafeAILab and in the speculators format.

- SafeAILab: sizes in config.json; EAGLE has `fc` and `layers.N`, the first without `input_layernorm`; EAGLE-3
  has `fc`, `midlayer`, `norm`, `lm_head`, `d2t` and `t2d`.
- speculators: sizes in `transformer_layer_config`, less transformers' defaults; EAGLE has `fusion_fc` and
  `transformer`, and with `layernorms` also `embedding_layernorm` and `pre_lm_head_layernorm`; EAGLE-3 is as
  above with `layers.0` for `midlayer`.

Hidden states: `eagle_aux_hidden_state_layer_ids` counts the layers before each, as vLLM does; inside of
`eagle_config` it names the last layer before each, as SGLang and ModelOpt do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from outrider.core.errors import ConfigError, UnsupportedModelError
from outrider.drafting.heads.checkpoints.configs import layer_config, read_config, whole_number
from outrider.drafting.heads.checkpoints.layers import head_dim, take_draft_ids, take_layer, take_linear
from outrider.drafting.heads.checkpoints.tensors import CheckpointTensors
from outrider.drafting.heads.weights import EagleWeights, HeadConfig

_KINDS = ("eagle", "eagle3")
_PASSED_OVER = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
"""They follow from others, or are the target's and serve training only."""
_STATES = "eagle_aux_hidden_state_layer_ids"


def load_eagle(folder: Path) -> EagleWeights:
    """The head in `folder`, of whichever kind and layout it is.

    Raises:
        ConfigError: config.json or a tensor is missing, unreadable, misshapen or not understood.
        UnsupportedModelError: it is another kind of head, or its layers are not of the Llama kind.
    """
    config = read_config(folder)
    kind = config.get("speculators_model_type")
    if kind is not None and kind not in _KINDS:
        raise UnsupportedModelError(f"{folder.name} is a head of type {kind!r}, not {' or '.join(_KINDS)}")
    inner = config.get("transformer_layer_config") if kind else config
    if not isinstance(inner, dict):
        raise ConfigError(f"{folder / 'config.json'}: transformer_layer_config must be an object")
    layers = layer_config(folder, inner)
    tensors = CheckpointTensors(folder, rename=lambda name: name.removeprefix("model."))
    first = next((name for name in ("midlayer", "layers.0") if f"{name}.hidden_norm.weight" in tensors), "")
    if kind == "eagle3" or (kind is None and first):
        weights = _eagle3(config, layers, tensors, first or "layers.0")
    elif kind == "eagle":
        weights = _fused_eagle(config, layers, tensors)
    else:
        weights = _eagle(config, layers, tensors)
    tensors.check_all_taken(_PASSED_OVER)
    return weights


def _eagle(config: dict[str, Any], layers: Any, tensors: CheckpointTensors) -> EagleWeights:
    """SafeAILab's. Norms and an own head over a draft vocabulary are what others added."""
    hidden = layers.hidden_size
    head = tensors.find("lm_head.weight", -1, hidden)
    count = len(_feature_layers(config)) if "entry.weight" in tensors else 0
    return EagleWeights(
        _head_config("eagle", config, layers),
        fc=take_linear(tensors, "fc", hidden, 2 * hidden),
        entry=take_linear(tensors, "entry", hidden, count * hidden) if count else None,
        state_norms=_state_norms(config, tensors, count * hidden, count) if count else (),
        layers=tuple(
            take_layer(tensors, f"layers.{index}", layers, input_norm=True if index else None)
            for index in range(layers.num_hidden_layers)
        ),
        embedding=tensors.find("embed_tokens.weight", -1, hidden),
        head=head,
        norm=tensors.find("norm.weight", hidden),
        embedding_norm=tensors.find("embedding_norm.weight", hidden),
        draft_ids=None if head is None else take_draft_ids(tensors, len(head), layers.vocab_size),
    )


def _fused_eagle(config: dict[str, Any], layers: Any, tensors: CheckpointTensors) -> EagleWeights:
    """The speculators format: EAGLE and HASS without norms, others with them."""
    hidden = layers.hidden_size
    norms = bool(config.get("layernorms", False))
    return EagleWeights(
        _head_config("eagle", config, layers),
        fc=take_linear(tensors, "fusion_fc", hidden, 2 * hidden),
        layers=(take_layer(tensors, "transformer", layers, input_norm=norms or None),),
        embedding=tensors.find("embed_tokens.weight", -1, hidden),
        head=tensors.find("lm_head.weight", -1, hidden),
        norm=tensors.take("pre_lm_head_layernorm.weight", hidden) if norms else None,
        embedding_norm=tensors.take("embedding_layernorm.weight", hidden) if norms else None,
    )


def _eagle3(config: dict[str, Any], layers: Any, tensors: CheckpointTensors, first: str) -> EagleWeights:
    hidden = layers.hidden_size
    head = tensors.take("lm_head.weight", config.get("draft_vocab_size") or -1, hidden)
    states = _feature_layers(config)
    joined = (len(states) or 3) * (whole_number(config, "target_hidden_size", 0) or hidden)
    further = [f"layers.{index}" for index in range(1, layers.num_hidden_layers)]
    return EagleWeights(
        _head_config("eagle3", config, layers),
        fc=take_linear(tensors, "fc", hidden, joined),
        layers=(
            take_layer(tensors, first, layers, input_norm=True, joined=True),
            *(take_layer(tensors, name, layers, input_norm=True) for name in further),
        ),
        embedding=tensors.find("embed_tokens.weight", -1, hidden),
        head=head,
        norm=tensors.take("norm.weight", hidden),
        fc_norm=tensors.take("input_norm.weight", joined) if config.get("norm_before_fc") else None,
        state_norms=_state_norms(config, tensors, joined, len(states) or 3),
        draft_ids=take_draft_ids(tensors, len(head), layers.vocab_size),
    )


def _state_norms(
    config: dict[str, Any], tensors: CheckpointTensors, joined: int, count: int
) -> tuple[torch.Tensor, ...]:
    if not config.get("fc_norm"):
        return ()
    return tuple(tensors.take(f"fc_norm.{index}.weight", joined // count) for index in range(count))


def _head_config(kind: Any, config: dict[str, Any], layers: Any) -> HeadConfig:
    return HeadConfig(
        kind=kind,
        hidden_size=layers.hidden_size,
        target_hidden_size=whole_number(config, "target_hidden_size", 0) or layers.hidden_size,
        vocab_size=layers.vocab_size,
        heads=layers.num_attention_heads,
        kv_heads=layers.num_key_value_heads,
        head_dim=head_dim(layers),
        rms_norm_eps=layers.rms_norm_eps,
        rope_parameters=dict(layers.rope_parameters),
        feature_layers=_feature_layers(config),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_output=bool(config.get("norm_output", False)),
    )


def _feature_layers(config: dict[str, Any]) -> tuple[int, ...]:
    nested = config.get("eagle_config")
    counted, named = config.get(_STATES), nested.get(_STATES) if isinstance(nested, dict) else None
    chosen = counted or named or ()
    if not isinstance(chosen, list | tuple) or not all(isinstance(own, int) for own in chosen):
        raise ConfigError(f"config.json: {_STATES} is {str(chosen)[:40]!r}, expected a list of layers")
    return tuple(chosen) if counted else tuple(layer + 1 for layer in chosen)
