"""Runs an EAGLE head over packed rows against a paged pool.

A row stands for one position: the feature of a token, or what the head itself gave in its place, and the
embedding of the token after it. What comes out is the feature of that next token, as the head guesses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outrider.drafting.heads.weights import EagleWeights, LayerWeights, LinearWeights
from outrider.engine.attention import AttentionKind, attend
from outrider.engine.elementwise import apply_elementwise
from outrider.engine.kv_store import KvStore, LayerShape
from outrider.engine.plan import StepPlan
from outrider.engine.rows import Projection


@dataclass(frozen=True, slots=True)
class _Layer:
    """A decoder layer, its projections fused and prepacked."""

    qkv: Projection
    output: Projection
    gate_up: Projection
    down: Projection
    mlp_norm: torch.Tensor | None
    input_norm: torch.Tensor | None
    hidden_norm: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None


class HeadRunner:
    """An EAGLE or EAGLE-3 head with its KV tensors.

    Args:
        weights: of the head.
        embedding: [vocabulary, hidden_size], the target's if the checkpoint has none.
        output: [columns, hidden_size], likewise the output head.
        dtype: of weights, activations and KV.
        device: torch device.
        slots: token slots of the pool.
        positions: how many positions rows may stand at.
    """

    def __init__(
        self,
        weights: EagleWeights,
        embedding: torch.Tensor,
        output: torch.Tensor,
        *,
        dtype: torch.dtype,
        device: str,
        slots: int,
        positions: int,
    ) -> None:
        config = weights.config
        self._config = config
        self._like = like = torch.empty(0, dtype=dtype, device=device)
        self._embedding = embedding.detach().to(like)
        self._embedding_norm = _norm(weights.embedding_norm, like)
        self._entry = None if weights.entry is None else _fused("entry", like, weights.entry)
        self._fc_norm = _norm(weights.fc_norm, like)
        self._state_norms = [norm.detach().to(like) for norm in weights.state_norms]
        self._final_norm = _norm(weights.norm, like)
        self._fc = _fused("fc", like, weights.fc)
        self._head = _fused("lm_head", like, LinearWeights(output))
        self._layers = [_take_layer(layer, like) for layer in weights.layers]
        self._kind = AttentionKind(scale=config.head_dim**-0.5)
        self._cosines, self._sines = self._rotations(positions)
        shape = LayerShape(config.heads, config.kv_heads, config.head_dim, config.head_dim)
        self._store = KvStore([shape] * len(self._layers), slots, dtype, device)

    @property
    def store(self) -> KvStore:
        """The pool's tensors."""
        return self._store

    @property
    def attention_kinds(self) -> list[AttentionKind]:
        """How each layer attends."""
        return [self._kind] * len(self._layers)

    @property
    def projections(self) -> list[Projection]:
        """All linear layers."""
        inner = [p for layer in self._layers for p in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        entry = [] if self._entry is None else [self._entry]
        return [*entry, self._fc, *inner, self._head]

    @property
    def state_width(self) -> int:
        """Elements of what `condition` gives and `forward` takes and gives for a row."""
        return self._config.hidden_size

    def condition(self, features: torch.Tensor) -> torch.Tensor:
        """The target's features [n, features * target_hidden_size] as `forward` takes them.

        Returns:
            [n, hidden_size]
        """
        rows = features.to(self._like)
        if self._config.kind == "eagle" and self._entry is None:
            return rows
        if self._state_norms:
            states = rows.chunk(len(self._state_norms), -1)
            rows = torch.cat([self._normed(*own) for own in zip(states, self._state_norms, strict=True)], -1)
        if self._entry is not None:
            entered: torch.Tensor = self._entry(rows)
            return self._normed(entered, self._final_norm) if self._config.norm_output else entered
        joined: torch.Tensor = self._fc(self._normed(rows, self._fc_norm))
        return joined

    def forward(self, plan: StepPlan, positions: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Run the layers.

        Args:
            plan: packed rows, each with the token after its position, and attention groups.
            positions: int64 [T] absolute positions of the rows, padding included.
            states: [T, hidden_size]: of true rows what `condition` gave, else what `forward` gave for the row
                before.

        Returns:
            [T, hidden_size] the states of the rows after these.
        """
        embedding = self._normed(F.embedding(plan.token_ids, self._embedding), self._embedding_norm)
        cosines = self._cosines.index_select(0, positions)[:, None]
        sines = self._sines.index_select(0, positions)[:, None]
        first: torch.Tensor | None = None  # what the first layer's attention sees, if it is not the stream
        stream = states
        if self._config.kind == "eagle":
            stream = self._fc(torch.cat((embedding, states), -1))
        else:
            layer = self._layers[0]
            normed = self._normed(states, layer.hidden_norm)
            first = torch.cat((self._normed(embedding, layer.input_norm), normed), -1)
            if self._config.norm_before_residual:
                stream = normed
        for index, layer in enumerate(self._layers):
            seen = first if index == 0 and first is not None else self._normed(stream, layer.input_norm)
            stream = stream + self._attended(index, layer, seen, plan, cosines, sines)
            gate, up = layer.gate_up(self._normed(stream, layer.mlp_norm)).chunk(2, -1)
            stream = stream + layer.down(apply_elementwise(F.silu, gate).mul_(up))
        return self._normed(stream, self._final_norm) if self._config.norm_output else stream

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits [R, columns] of the tokens after the rows that gave `states` [R, hidden_size]."""
        norm = None if self._config.norm_output else self._final_norm
        logits: torch.Tensor = self._head(self._normed(states, norm))
        return logits

    def _attended(
        self,
        index: int,
        layer: _Layer,
        seen: torch.Tensor,
        plan: StepPlan,
        cosines: torch.Tensor,
        sines: torch.Tensor,
    ) -> torch.Tensor:
        count, heads, dim = seen.shape[0], self._config.heads, self._config.head_dim
        both_heads = heads + self._config.kv_heads
        qkv = layer.qkv(seen)
        both = qkv[:, : both_heads * dim].view(count, both_heads, dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            both[:, :heads] = self._normed(both[:, :heads], layer.query_norm)
            both[:, heads:] = self._normed(both[:, heads:], layer.key_norm)
        turned = both.roll(dim // 2, -1)
        both.mul_(cosines).addcmul_(turned, sines)
        self._store.write(index, plan.slots, qkv[: plan.count, heads * dim :])
        attended = attend(plan, self._store, index, both[:, :heads], self._kind)
        projected: torch.Tensor = layer.output(attended.reshape(count, heads * dim))
        return projected

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        if weight is None:
            return rows
        return F.rms_norm(rows, weight.shape, weight, self._config.rms_norm_eps)

    def _rotations(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines [positions, head_dim]: x * cos + roll(x, dim / 2) * sin turns x."""
        config = self._config
        rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=config.hidden_size,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                head_dim=config.head_dim,
                max_position_embeddings=positions,
                rope_parameters=dict(config.rope_parameters),
            )
        )
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * rotary.inv_freq.float()
        scaling = cast(float, rotary.attention_scaling)
        cosines, sines = angles.cos() * scaling, angles.sin() * scaling
        return torch.cat((cosines, cosines), -1).to(self._like), torch.cat((-sines, sines), -1).to(self._like)


def _take_layer(weights: LayerWeights, like: torch.Tensor) -> _Layer:
    return _Layer(
        qkv=_fused("qkv", like, weights.query, weights.key, weights.value),
        output=_fused("output", like, weights.output),
        gate_up=_fused("gate_up", like, weights.gate, weights.up),
        down=_fused("down", like, weights.down),
        mlp_norm=_norm(weights.mlp_norm, like),
        input_norm=_norm(weights.input_norm, like),
        hidden_norm=_norm(weights.hidden_norm, like),
        query_norm=_norm(weights.query_norm, like),
        key_norm=_norm(weights.key_norm, like),
    )


def _norm(weight: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    return None if weight is None else weight.detach().to(like)


def _fused(name: str, like: torch.Tensor, *parts: LinearWeights) -> Projection:
    weight = torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight
    if all(part.bias is None for part in parts):
        return Projection(weight.detach().to(like), None, name)
    biases = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in parts]
    return Projection(weight.detach().to(like), torch.cat(biases).detach().to(like), name)
