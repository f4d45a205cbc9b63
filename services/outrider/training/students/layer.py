"""A decoder layer of the Llama kind that learns, also on what it drafted itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outrider.training.target import Teacher

_MASKED = -1e9
QUIET = 0.1
"""Factor of the projections that write into the residual stream, at first: the layer begins almost mute."""


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Of one layer."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    seen: int  # width of what attention sees
    eps: float  # of norms

    @classmethod
    def of(cls, teacher: Teacher, *, wide: bool = False) -> LayerSizes:
        """Those of the target's layers; `wide`: attention sees two states."""
        config, hidden = teacher.config, teacher.hidden_size
        heads = config.num_attention_heads
        return cls(
            hidden,
            int(getattr(config, "intermediate_size", None) or 4 * hidden),
            heads,
            int(getattr(config, "num_key_value_heads", None) or heads),
            int(getattr(config, "head_dim", None) or hidden // heads),
            2 * hidden if wide else hidden,
            teacher.norm_eps,
        )


@dataclass(slots=True)
class Passes:
    """Keys and values of each pass over the rows: the first has true states, later ones drafted ones."""

    keys: list[torch.Tensor] = field(default_factory=list)  # [rows, heads, head_dim]
    values: list[torch.Tensor] = field(default_factory=list)


class Rotary:
    """Turns queries and keys by their positions."""

    def __init__(
        self, sizes: LayerSizes, parameters: Mapping[str, object], positions: int, device: str
    ) -> None:
        """`parameters` as a transformers config has them; `positions`: how many there may be."""
        rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=sizes.hidden,
                num_attention_heads=sizes.heads,
                head_dim=sizes.head_dim,
                max_position_embeddings=positions,
                rope_parameters=dict(parameters),
            )
        )
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * rotary.inv_freq.float()
        scaling = float(rotary.attention_scaling)
        self._cosines = torch.cat((angles.cos(), angles.cos()), -1).to(device) * scaling
        self._sines = torch.cat((-angles.sin(), angles.sin()), -1).to(device) * scaling

    def __call__(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Turn rows [n, heads, head_dim] that stand at `positions` [n]."""
        half = rows.shape[-1] // 2
        turned = (
            rows * self._cosines[positions][:, None] + rows.roll(half, -1) * self._sines[positions][:, None]
        )
        return turned.to(rows.dtype)


class DecoderLayer(nn.Module):
    """Attention and MLP with their residuals. Weights float32, products in the type of what comes in."""

    def __init__(self, sizes: LayerSizes, weights: Mapping[str, torch.Tensor]) -> None:
        """Begin from a layer's `weights` where their shapes fit, else from random ones."""
        super().__init__()
        self.sizes = sizes
        shapes = _shapes(sizes)
        self.weights = nn.ParameterDict(
            {
                _key(name): nn.Parameter(_initial(name, shape, sizes, weights))
                for name, shape in shapes.items()
            }
        )

    def named_weights(self) -> dict[str, torch.Tensor]:
        """Weights by the names that Hugging Face gives them within a layer."""
        return {name: self.weights[_key(name)] for name in _shapes(self.sizes)}

    def forward(
        self,
        stream: torch.Tensor,
        seen: torch.Tensor,
        rotary: Rotary,
        positions: torch.Tensor,
        segments: Sequence[tuple[int, int]],
        passes: Passes,
    ) -> torch.Tensor:
        """One more pass over the rows.

        Args:
            stream: [rows, hidden] residual stream.
            seen: [rows, seen] what attention projects, normed.
            rotary: of the layer.
            positions: int64 [rows].
            segments: rows that may see each other.
            passes: those before; this one is added.
        """
        rows, sizes = len(stream), self.sizes
        query = rotary(
            self.project("self_attn.q_proj", seen).view(rows, sizes.heads, sizes.head_dim), positions
        )
        key = rotary(
            self.project("self_attn.k_proj", seen).view(rows, sizes.kv_heads, sizes.head_dim), positions
        )
        value = self.project("self_attn.v_proj", seen).view(rows, sizes.kv_heads, sizes.head_dim)
        group = sizes.heads // sizes.kv_heads
        passes.keys.append(key.repeat_interleave(group, 1))
        passes.values.append(value.repeat_interleave(group, 1))
        attended = torch.cat([_attend(query[a:b], passes, slice(a, b)) for a, b in segments])
        stream = stream + self.project("self_attn.o_proj", attended.reshape(rows, -1))
        normed = self.norm("post_attention_layernorm", stream)
        inner = F.silu(self.project("mlp.gate_proj", normed)) * self.project("mlp.up_proj", normed)
        return stream + self.project("mlp.down_proj", inner)

    def norm(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """RMS norm by the weight of that name."""
        return rms_norm(rows, self.weights[_key(name + ".weight")], self.sizes.eps)

    def project(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Multiply by the weight of that name."""
        return project(rows, self.weights[_key(name + ".weight")])


def project(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A linear layer in the type of its input."""
    return F.linear(rows, weight.to(rows.dtype), None if bias is None else bias.to(rows.dtype))


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """In float32, given back in the type of the rows."""
    return F.rms_norm(rows.float(), weight.shape, weight, eps).to(rows.dtype)


def _attend(query: torch.Tensor, passes: Passes, window: slice) -> torch.Tensor:
    """Attention of a conversation's rows [n, heads, head_dim] in the last pass.

    Pass s (from 1) drafts s tokens past the true ones: row i sees true rows up to i - s + 1 and, of each pass
    x between, the one row i - (s - x) that its own draft went through (EAGLE-3's training-time test).
    """
    queries = query.transpose(0, 1)
    keys = [rows[window].transpose(0, 1) for rows in passes.keys]
    values = [rows[window].transpose(0, 1) for rows in passes.values]
    last = len(keys)
    if last == 1:
        plain = F.scaled_dot_product_attention(queries[None], keys[0][None], values[0][None], is_causal=True)
        return plain[0].transpose(0, 1)
    rows, scale = query.shape[0], query.shape[-1] ** -0.5
    index = torch.arange(rows, device=query.device)
    hidden = index[None, :] > index[:, None] - last + 1
    scores = [((queries @ keys[0].transpose(1, 2)).float() * scale).masked_fill(hidden, _MASKED)]
    drafted = []
    for number in range(2, last + 1):
        back = last - number
        own_keys = F.pad(keys[number - 1], (0, 0, back, 0))[:, :rows]
        drafted.append(F.pad(values[number - 1], (0, 0, back, 0))[:, :rows])
        scores.append((queries * own_keys).sum(-1, keepdim=True).float() * scale)
    shares = torch.cat(scores, -1).softmax(-1).to(query.dtype)
    attended = shares[..., :rows] @ values[0]
    for column, own_values in enumerate(drafted):
        attended = attended + shares[..., rows + column, None] * own_values
    return attended.transpose(0, 1)


def _shapes(sizes: LayerSizes) -> dict[str, tuple[int, ...]]:
    query, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return {
        "input_layernorm.weight": (sizes.hidden,),
        "self_attn.q_proj.weight": (query, sizes.seen),
        "self_attn.k_proj.weight": (kv, sizes.seen),
        "self_attn.v_proj.weight": (kv, sizes.seen),
        "self_attn.o_proj.weight": (sizes.hidden, query),
        "post_attention_layernorm.weight": (sizes.hidden,),
        "mlp.gate_proj.weight": (sizes.inner, sizes.hidden),
        "mlp.up_proj.weight": (sizes.inner, sizes.hidden),
        "mlp.down_proj.weight": (sizes.hidden, sizes.inner),
    }


def _initial(
    name: str, shape: tuple[int, ...], sizes: LayerSizes, weights: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    given = weights.get(name)
    if given is not None and tuple(given.shape) == shape:
        return given.float().clone()
    if len(shape) == 1:
        return torch.ones(shape)
    fresh: torch.Tensor = torch.randn(shape) * shape[1] ** -0.5
    if given is not None and given.shape == (shape[0], sizes.hidden):
        fresh[:, -sizes.hidden :] = given.float()  # attention sees another state first
        fresh[:, : -sizes.hidden] *= 1.0 if "v_proj" in name else 0.5
    return fresh


def _key(name: str) -> str:
    """A ParameterDict's keys hold no dots."""
    return name.replace(".", "/")
