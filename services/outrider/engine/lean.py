"""A lean forward for the llama family: few, fused, prepacked operations on packed rows.

Same mathematics as transformers' Llama, Mistral, Qwen2 and Qwen3 (checked against them in the tests):
one product for q, k and v, one for gate and up, rotation of queries and keys together and in place, keys
and values written to the pool as they come out of the product.

Several ranks may share a model (Megatron-LM, arXiv 1909.08053): each has its heads with their keys and
values, its columns of gate and up, its tokens of the vocabulary. What the layers hand on is a sum over ranks,
one after `output` and one after `down`; every rank then has it whole.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from outrider.core.features import LAST_HIDDEN, hidden_after, offered
from outrider.engine.attention import AttentionKind, attend
from outrider.engine.elementwise import apply_elementwise
from outrider.engine.kv_store import KvStore, LayerShape
from outrider.engine.parallel.group import Alone, Group
from outrider.engine.parallel.shard import local_part
from outrider.engine.plan import StepPlan
from outrider.engine.rows import Projection
from outrider.engine.runner import RunnerOutput

LEAN_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def is_lean(config: Any) -> bool:
    """True if the lean forward covers this model."""
    return bool(config.model_type in LEAN_TYPES and config.hidden_act == "silu")


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Projection
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    kind: AttentionKind
    output: Projection
    mlp_norm: torch.Tensor
    gate_up: Projection
    down: Projection


class LeanRunner:
    """Runs a llama-like model (implements Runner).

    Args:
        model: transformers model of one of the lean types; its weights are taken over.
        slots: token slots of the pool.
        head_rows: int64 [N] vocabulary ids that the output head is restricted to; None: all, as it must be
            where several ranks share the model.
        group: these ranks; `model` then holds this one's part of the weights.
    """

    def __init__(
        self, model: Any, slots: int, head_rows: torch.Tensor | None = None, group: Group | None = None
    ) -> None:
        config = model.config
        self._group = group or Alone()
        self._heads: int = config.num_attention_heads // self._group.size
        self._kv_heads: int = config.num_key_value_heads // self._group.size
        self._head_dim: int = model.model.layers[0].self_attn.head_dim
        self._eps: float = config.rms_norm_eps
        self._embedding = local_part(model.model.embed_tokens.weight)
        self._norm = model.model.norm.weight.detach()
        head = model.lm_head
        rows = slice(None) if head_rows is None else head_rows
        bias = None if head.bias is None else local_part(head.bias)[rows]
        self._head = Projection(local_part(head.weight)[rows], bias, "lm_head")
        self._cosines, self._sines = _rotations(
            model.model.rotary_emb, config.max_position_embeddings, model.dtype
        )
        self._layers = [_take_layer(layer, first=self._group.rank == 0) for layer in model.model.layers]
        shape = LayerShape(self._heads, self._kv_heads, self._head_dim, self._head_dim)
        self._store = KvStore([shape] * len(self._layers), slots, model.dtype, str(model.device))

    @property
    def store(self) -> KvStore:
        """The pool's tensors."""
        return self._store

    @property
    def attention_kinds(self) -> list[AttentionKind]:
        """How each layer attends."""
        return [layer.kind for layer in self._layers]

    @property
    def projections(self) -> list[Projection]:
        """All linear layers."""
        inner = [p for layer in self._layers for p in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return [*inner, self._head]

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._head.out_features * self._group.size

    @property
    def features(self) -> frozenset[str]:
        """See Runner.features."""
        return offered(len(self._layers))

    def forward(self, plan: StepPlan, rows: torch.Tensor, *, features: Collection[str] = ()) -> RunnerOutput:
        """See Runner.forward."""
        state = self._embedded(plan.token_ids)
        cosines = self._cosines.index_select(0, plan.positions)[:, None]
        sines = self._sines.index_select(0, plan.positions)[:, None]
        taken: dict[str, torch.Tensor] = {}
        for index, layer in enumerate(self._layers):
            if features and (name := hidden_after(index)) in features:
                taken[name] = state
            state = self._run_layer(index, layer, state, plan, cosines, sines)
        if (name := hidden_after(len(self._layers))) in features:
            taken[name] = state
        if LAST_HIDDEN in features:
            taken[LAST_HIDDEN] = self._normed(state, self._norm)
        logits = self._head(self._normed(state.index_select(0, rows), self._norm))
        return RunnerOutput(self._group.columns(logits), taken)

    def _embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._group.size == 1:
            return F.embedding(token_ids, self._embedding)
        known = len(self._embedding)
        own = token_ids - self._group.rank * known
        elsewhere = (own < 0) | (own >= known)
        state = F.embedding(own.clamp(0, known - 1), self._embedding)
        return self._group.sum(state.masked_fill_(elsewhere[:, None], 0))

    def _run_layer(
        self,
        index: int,
        layer: _Layer,
        state: torch.Tensor,
        plan: StepPlan,
        cosines: torch.Tensor,
        sines: torch.Tensor,
    ) -> torch.Tensor:
        count, heads, dim = state.shape[0], self._heads, self._head_dim
        qkv = layer.qkv(self._normed(state, layer.input_norm))
        both = qkv[:, : (heads + self._kv_heads) * dim].view(count, heads + self._kv_heads, dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            both[:, :heads] = self._normed(both[:, :heads], layer.query_norm)
            both[:, heads:] = self._normed(both[:, heads:], layer.key_norm)
        turned = both.roll(dim // 2, -1)
        both.mul_(cosines).addcmul_(turned, sines)
        self._store.write(index, plan.slots, qkv[: plan.count, heads * dim :])
        attended = attend(plan, self._store, index, both[:, :heads], layer.kind)
        state = state + self._group.sum(layer.output(attended.reshape(count, heads * dim)))
        gate, up = layer.gate_up(self._normed(state, layer.mlp_norm)).chunk(2, -1)
        mixed: torch.Tensor = layer.down(apply_elementwise(F.silu, gate).mul_(up))
        return state + self._group.sum(mixed)

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = F.rms_norm(rows, weight.shape, weight, self._eps)
        return normed


def _take_layer(layer: Any, *, first: bool) -> _Layer:
    """`first`: of the ranks, the one that adds the biases of what is summed over them."""
    attention, mlp = layer.self_attn, layer.mlp
    window = getattr(attention, "sliding_window", None)
    if window is None and attention.config.model_type == "mistral":
        window = attention.config.sliding_window
    return _Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=_fused("qkv", attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=attention.q_norm.weight.detach() if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight.detach() if hasattr(attention, "k_norm") else None,
        kind=AttentionKind(scale=attention.scaling, window=window or 0),
        output=_fused("output", attention.o_proj, biased=first),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_fused("gate_up", mlp.gate_proj, mlp.up_proj),
        down=_fused("down", mlp.down_proj, biased=first),
    )


def _fused(name: str, *parts: torch.nn.Linear, biased: bool = True) -> Projection:
    weights = [local_part(part.weight) for part in parts]
    biases = None
    if biased and any(part.bias is not None for part in parts):
        biases = torch.cat(
            [
                weight.new_zeros(len(weight)) if part.bias is None else local_part(part.bias)
                for part, weight in zip(parts, weights, strict=True)
            ]
        )
    return Projection(weights[0] if len(weights) == 1 else torch.cat(weights), biases, name)


def _rotations(rotary: Any, positions: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines [positions, head_dim]: x * cos + roll(x, dim / 2) * sin turns x."""
    steps = torch.arange(positions, dtype=torch.float32, device=rotary.inv_freq.device)
    angles = steps[:, None] * rotary.inv_freq.float()
    cosines = angles.cos() * rotary.attention_scaling
    sines = angles.sin() * rotary.attention_scaling
    return torch.cat((cosines, cosines), -1).to(dtype), torch.cat((-sines, sines), -1).to(dtype)
