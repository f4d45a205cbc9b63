"""Activation functions whose bits depend on an element alone, not on where torch's loops cut.

An element-wise operation of torch runs whole vectors and takes what is left over one by one, with another
exp or tanh that may differ in the last bit. Large tensors are first cut into a part for each thread,
anywhere, so which elements are left over depends on the number of rows and of threads. Here every cut is
at a whole number of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers.activations import ACT2CLS

_GRAIN = 32_768  # at::internal::GRAIN_SIZE: least elements of a thread's part
_ALONE = 16_384  # up to this many elements, one thread does all: GELU goes by its own, lower bound
_VECTORS = 64  # elements: twice the widest vector of the narrowest type

RowFunction = Callable[[torch.Tensor], torch.Tensor]


def apply_elementwise(function: RowFunction, rows: torch.Tensor) -> torch.Tensor:
    """`function`, element by element, over `rows` [..., width]: the same bits for any number of rows."""
    if rows.device.type != "cpu":
        return function(rows)
    width = rows.shape[-1]
    if width % _VECTORS:
        padded = apply_elementwise(function, F.pad(rows, (0, -width % _VECTORS)))
        return padded[..., :width].contiguous()
    if not _cuts_vectors(rows.numel()):
        return function(rows)
    flat = rows.reshape(-1, width)
    parts = torch.split(flat, max(1, _ALONE // width))
    return torch.cat([function(part) for part in parts]).view(rows.shape)


def _cuts_vectors(elements: int) -> bool:
    """Whether torch's threads would be given other than whole vectors, by either bound."""
    threads = torch.get_num_threads()
    if threads == 1 or elements <= _ALONE:
        return False
    usual = min(threads, -(-elements // _GRAIN))
    return any(-(-elements // parts) % _VECTORS for parts in (usual, threads))


class Activation(torch.nn.Module):
    """Another activation module, with bits that do not depend on the number of rows."""

    def __init__(self, function: torch.nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` [..., width], element by element."""
        return apply_elementwise(self.function, rows)


def replace_activations(model: Any) -> None:
    """Put an `Activation` around every activation module of a transformers model."""
    kinds = tuple(kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values())
    kinds = tuple(kind for kind in kinds if isinstance(kind, type))
    for name, module in list(model.named_modules()):
        if isinstance(module, kinds):
            model.set_submodule(name, Activation(module))
