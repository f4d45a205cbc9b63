"""Medusa heads (arXiv 2401.10774): each foretells one of the next tokens from the last hidden state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from outrider.core.features import LAST_HIDDEN
from outrider.training.data.shards import Sample
from outrider.training.students.layer import project
from outrider.training.students.packing import Packed, pack, shifted
from outrider.training.students.student import Student, divergence
from outrider.training.target import Teacher

HEADS = 4
DECAY = 0.8
"""Weight of a head's loss over that of the head before (as in Medusa)."""


class Medusa(Student):
    """Residual blocks h + silu(W h + b) through the target's own output head. W and b begin at zero."""

    def __init__(
        self, teacher: Teacher, *, compute: torch.dtype, device: str, heads: int = HEADS, blocks: int = 1
    ) -> None:
        """`heads`: tokens foretold; `blocks`: residual blocks of each."""
        super().__init__(teacher, compute=compute, device=device)
        self.features = (LAST_HIDDEN,)
        hidden = teacher.hidden_size
        self._heads, self._blocks = heads, blocks
        self.weights = nn.ParameterList([torch.zeros(hidden, hidden) for _ in range(heads * blocks)])
        self.biases = nn.ParameterList([torch.zeros(hidden) for _ in range(heads * blocks)])
        self.to(device)

    def loss(self, samples: Sequence[Sample], unroll: int) -> tuple[torch.Tensor, int]:
        packed = pack(samples, self.device)
        hidden = packed.features[LAST_HIDDEN]
        total = torch.zeros((), device=self.device)
        for head in range(self._heads):
            scored = packed.answered(head + 2)
            if bool(scored.any()):
                taught = self.teacher.log_probs(shifted(hidden, -1 - head)[scored])
                total = total + DECAY**head * divergence(taught, self._logits(head, hidden[scored]))
        return total / self._heads, int(packed.answered(2).sum())

    @torch.no_grad()
    def hits(self, samples: Sequence[Sample], depth: int) -> torch.Tensor:
        packed: Packed = pack(samples, self.device)
        hidden = packed.features[LAST_HIDDEN]
        right = packed.answered(2) & packed.answered(1 + depth)
        counts = [right.sum()]
        for head in range(depth):
            if head < self._heads:
                picks = self.teacher.draft_ids[self._logits(head, hidden).argmax(-1)]
                right = right & (picks == shifted(packed.token_ids, -2 - head))
            else:
                right = torch.zeros_like(right)
            counts.append(right.sum())
        return torch.stack(counts).cpu()

    def tensors(self) -> dict[str, torch.Tensor]:
        every: dict[str, torch.Tensor] = {}
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            head, block = divmod(number, self._blocks)
            every[f"{head}.{block}.linear.weight"] = weight
            every[f"{head}.{block}.linear.bias"] = bias
        return every

    def published_config(self) -> dict[str, Any]:
        return {
            "medusa_num_heads": self._heads,
            "medusa_num_layers": self._blocks,
            "hidden_size": self.teacher.hidden_size,
            "vocab_size": self.teacher.target.info.vocab_size,
            "draft_vocab_size": len(self.teacher.draft_ids),
            "torch_dtype": "bfloat16",
        }

    def _logits(self, head: int, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.to(self.compute)
        for number in range(head * self._blocks, (head + 1) * self._blocks):
            rows = rows + F.silu(project(rows, self.weights[number], self.biases[number]))
        return project(rows, self.teacher.head)
