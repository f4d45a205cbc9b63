"""The tensors of the KV pool: for each layer one row per token slot, keys then values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A layer's attention: query heads, and what it keeps of a token: `kv_heads` keys and values."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.kv_heads * (self.key_dim + self.value_dim)


class KvStore:
    """Keys and values of all slots.

    Keys and values of a token stand in one row, so that one gather fetches both. Slots of block 0 are
    never written and stay zero: whatever is masked out must not be NaN.
    """

    def __init__(self, shapes: Sequence[LayerShape], slots: int, dtype: torch.dtype, device: str) -> None:
        self.shapes = tuple(shapes)
        self.layers = [zeros(slots, shape.width, dtype, device) for shape in self.shapes]

    def write(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Store `rows` [n, width] into `slots` [n]."""
        self.layers[layer].index_copy_(0, slots, rows)

    def gather(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B, kv_heads, L, key_dim] and values [B, kv_heads, L, value_dim] of `slots` [B, L]."""
        shape = self.shapes[layer]
        batch, length = slots.shape
        rows = self.layers[layer].index_select(0, slots.view(-1)).view(batch, length, shape.width)
        keys_width = shape.kv_heads * shape.key_dim
        keys = rows[..., :keys_width].view(batch, length, shape.kv_heads, shape.key_dim)
        values = rows[..., keys_width:].view(batch, length, shape.kv_heads, shape.value_dim)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """All that is stored in `slots` [n], layer after layer: [n * width of all layers]."""
        return torch.cat([layer.index_select(0, slots).flatten() for layer in self.layers])

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy rows of slots `source` [n] to slots `target` [n] in every layer; they may overlap."""
        for layer in self.layers:
            layer.index_copy_(0, target, layer.index_select(0, source))


def zeros(slots: int, width: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Rows of zeros [slots, width]; on a CPU their memory is taken when it is first written to."""
    if torch.device(device).type != "cpu":
        return torch.zeros(slots, width, dtype=dtype, device=device)
    # numpy's zeros are calloc'ed: memory of slots that are never used is never touched.
    raw = numpy.zeros(slots * width * dtype.itemsize, dtype=numpy.uint8)
    return torch.from_numpy(raw).view(dtype).view(slots, width)
