"""What an EAGLE checkpoint holds, whatever its file layout: what loaders give and the runner takes.

EAGLE (arXiv 2401.15077) and EAGLE-3 (arXiv 2503.01840) differ in what goes into the first layer:

- `eagle`: fc(cat(embedding, last_hidden)) is the input of ordinary Llama layers; what they give is the next
  `last_hidden`, which the target's own output head turns into logits.
- `eagle3`: fc(cat(hidden states after several layers)) is the residual stream g; the first layer's attention
  sees cat(input_norm(embedding), hidden_norm(g)); what the layers give is the next g, and norm and an own
  output head over a draft vocabulary turn it into logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes and variants of an EAGLE head."""

    kind: Literal["eagle", "eagle3"]
    hidden_size: int  # of the head
    target_hidden_size: int  # of one feature
    vocab_size: int  # of the target, as the checkpoint says; 0: it does not
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}
    )  # as transformers 5 has them in a config
    feature_layers: tuple[int, ...] = ()  # eagle3: after how many layers of the target; empty: 2, n/2, n-3
    norm_before_residual: bool = False  # eagle3: the residual stream begins after hidden_norm, not before
    norm_output: bool = False  # the next state is what `norm` gives, as the target's own is, not what it gets


class LinearWeights(NamedTuple):
    """A linear layer."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None = None  # [out]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer of the Llama kind."""

    query: LinearWeights  # [heads * head_dim, in], in = 2 * hidden_size in the first layer of eagle3
    key: LinearWeights  # [kv_heads * head_dim, in]
    value: LinearWeights  # [kv_heads * head_dim, in]
    output: LinearWeights  # [hidden_size, heads * head_dim]
    mlp_norm: torch.Tensor  # [hidden_size], in checkpoints post_attention_layernorm
    gate: LinearWeights
    up: LinearWeights
    down: LinearWeights
    input_norm: torch.Tensor | None = None  # [hidden_size]; eagle3, first layer: of the embedding
    hidden_norm: torch.Tensor | None = None  # [hidden_size]; eagle3, first layer: of g
    query_norm: torch.Tensor | None = None  # [head_dim]
    key_norm: torch.Tensor | None = None  # [head_dim]


@dataclass(frozen=True, slots=True)
class EagleWeights:
    """A checkpoint as it was loaded. What it lacks is the target's."""

    config: HeadConfig
    fc: LinearWeights  # eagle: [hidden, 2 * hidden]; eagle3: [hidden, features * target_hidden_size]
    layers: tuple[LayerWeights, ...]
    embedding: torch.Tensor | None = None  # [vocabulary, hidden_size]
    head: torch.Tensor | None = None  # [columns, hidden_size]
    norm: torch.Tensor | None = None  # [hidden_size] before the output head; None: no norm
    embedding_norm: torch.Tensor | None = None  # [hidden_size] of the embedding, before fc (eagle)
    entry: LinearWeights | None = None  # eagle over several features: [hidden, features * target_hidden_size]
    fc_norm: torch.Tensor | None = None  # [features * target_hidden_size] before fc (eagle3)
    state_norms: tuple[torch.Tensor, ...] = ()  # [target_hidden_size] of each feature, before fc (or `entry`)
    draft_ids: torch.Tensor | None = None  # int64 [columns] target ids of the head's rows; None: the same
