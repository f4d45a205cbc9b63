"""Decoder layers and draft vocabularies out of a checkpoint's tensors."""

from __future__ import annotations

from typing import Any

import torch

from outrider.drafting.heads.checkpoints.tensors import CheckpointTensors
from outrider.drafting.heads.weights import LayerWeights, LinearWeights


def head_dim(config: Any) -> int:
    """Elements of an attention head, as transformers has it for the configuration of a layer."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def take_linear(tensors: CheckpointTensors, name: str, out_width: int, in_width: int) -> LinearWeights:
    """A linear layer, with a bias if there is one. Raises ConfigError as `CheckpointTensors.take` does."""
    return LinearWeights(
        tensors.take(f"{name}.weight", out_width, in_width), tensors.find(f"{name}.bias", out_width)
    )


def take_layer(
    tensors: CheckpointTensors, name: str, config: Any, *, input_norm: bool | None, joined: bool = False
) -> LayerWeights:
    """One decoder layer.

    Args:
        tensors: of the checkpoint.
        name: what the layer's tensors begin with.
        config: transformers' configuration of the layers.
        input_norm: whether there is a norm before attention; None: if the checkpoint has one.
        joined: attention sees embedding and state side by side, each with its norm (EAGLE-3's first layer).

    Raises:
        ConfigError: a tensor is missing or misshapen.
    """
    hidden, inner, size = config.hidden_size, config.intermediate_size, head_dim(config)
    heads, kv_heads = config.num_attention_heads * size, config.num_key_value_heads * size
    seen = 2 * hidden if joined else hidden
    attention = f"{name}.self_attn"
    before = f"{name}.input_layernorm.weight"
    return LayerWeights(
        query=take_linear(tensors, f"{attention}.q_proj", heads, seen),
        key=take_linear(tensors, f"{attention}.k_proj", kv_heads, seen),
        value=take_linear(tensors, f"{attention}.v_proj", kv_heads, seen),
        output=take_linear(tensors, f"{attention}.o_proj", hidden, heads),
        mlp_norm=tensors.take(f"{name}.post_attention_layernorm.weight", hidden),
        gate=take_linear(tensors, f"{name}.mlp.gate_proj", inner, hidden),
        up=take_linear(tensors, f"{name}.mlp.up_proj", inner, hidden),
        down=take_linear(tensors, f"{name}.mlp.down_proj", hidden, inner),
        input_norm=tensors.take(before, hidden) if input_norm else tensors.find(before, hidden),
        hidden_norm=tensors.take(f"{name}.hidden_norm.weight", hidden) if joined else None,
        query_norm=tensors.find(f"{attention}.q_norm.weight", size),
        key_norm=tensors.find(f"{attention}.k_norm.weight", size),
    )


def take_draft_ids(tensors: CheckpointTensors, columns: int, vocab_size: int) -> torch.Tensor | None:
    """Target ids of the output head's rows, int64 [columns]; None: the checkpoint maps nothing.

    `d2t` holds for each draft id what must be added to it; `t2d` says for each target id whether it has one.

    Raises:
        ConfigError: an id is out of range or stands twice, or the two contradict each other.
    """
    offsets = tensors.find("d2t", columns)
    if offsets is None:
        return None
    if offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise tensors.fault(f"d2t has type {offsets.dtype}, expected whole numbers")
    ids = offsets.long() + torch.arange(columns)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise tensors.fault(f"d2t leads to ids from {low} to {high}, expected 0 to {vocab_size - 1}")
    if len(set(ids.tolist())) != columns:
        raise tensors.fault("d2t leads to the same id from several draft ids")
    kept = tensors.find("t2d", vocab_size)
    if kept is not None and not torch.equal(kept.bool().nonzero().flatten(), ids.sort().values):
        raise tensors.fault("d2t and t2d name different ids")
    return ids
