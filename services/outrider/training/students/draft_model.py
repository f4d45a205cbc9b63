"""A draft model: a few layers of the target, distilled. Embeddings and output head stay the target's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from outrider.core.features import LAST_HIDDEN
from outrider.training.data.shards import Sample
from outrider.training.students.eagle import POSITIONS
from outrider.training.students.layer import DecoderLayer, LayerSizes, Passes, Rotary, project, rms_norm
from outrider.training.students.packing import pack, shifted
from outrider.training.students.student import Student, divergence
from outrider.training.target import Teacher


class DraftModel(Student):
    """A small Llama."""

    def __init__(
        self, teacher: Teacher, *, compute: torch.dtype, device: str, layers: Sequence[int] = ()
    ) -> None:
        """`layers` of the target that it begins with; empty: the first two and the last."""
        super().__init__(teacher, compute=compute, device=device)
        self.features = (LAST_HIDDEN,)
        last = teacher.target.info.num_layers - 1
        chosen = tuple(layers) or tuple(dict.fromkeys((0, min(1, last), last)))
        sizes = LayerSizes.of(teacher)
        every = _layers_of(teacher.target.folder, chosen)
        self.layers = nn.ModuleList([DecoderLayer(sizes, own) for own in every])
        final = teacher.final_norm()
        self.norm = nn.Parameter(torch.ones(sizes.hidden) if final is None else final.float().clone())
        self._sizes = sizes
        self._rotary = Rotary(sizes, teacher.rope_parameters, POSITIONS, device)
        self.to(device)

    def loss(self, samples: Sequence[Sample], unroll: int) -> tuple[torch.Tensor, int]:
        logits, scored, hidden = self._run(samples)
        return divergence(self.teacher.log_probs(hidden[scored]), logits[scored]), int(scored.sum())

    @torch.no_grad()
    def hits(self, samples: Sequence[Sample], depth: int) -> torch.Tensor:
        """Of a text that the model agrees with, its own draft is the text: no pass of its own is needed."""
        packed = pack(samples, self.device)
        logits, _, _ = self._run(samples)
        agrees = self.teacher.draft_ids[logits.argmax(-1)] == shifted(packed.token_ids, -1)
        # From the same tokens as heads start from, which know one token more.
        right = packed.answered(2) & packed.answered(1 + depth)
        counts = [right.sum()]
        for ahead in range(1, depth + 1):
            right = right & shifted(agrees, -ahead)
            counts.append(right.sum())
        return torch.stack(counts).cpu()

    def tensors(self) -> dict[str, torch.Tensor]:
        every: dict[str, torch.Tensor] = {"model.norm.weight": self.norm}
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            every |= {f"model.layers.{number}.{name}": own for name, own in layer.named_weights().items()}
        return every

    def published_config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.teacher.config.to_dict()
        config |= {"num_hidden_layers": len(self.layers), "torch_dtype": "bfloat16"}
        return config

    def _run(self, samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        packed = pack(samples, self.device)
        stream = self.teacher.embedding[packed.token_ids].to(self.compute)
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            seen = layer.norm("input_layernorm", stream)
            stream = layer(stream, seen, self._rotary, packed.positions, packed.segments, Passes())
        logits = project(rms_norm(stream, self.norm, self._sizes.eps), self.teacher.head)
        return logits, packed.answered(1), packed.features[LAST_HIDDEN]


def _layers_of(folder: Path, chosen: Sequence[int]) -> list[Mapping[str, torch.Tensor]]:
    state: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        state |= load_file(path)
    prefixes = [f"model.layers.{number}." for number in chosen]
    return [
        {name.removeprefix(prefix): own for name, own in state.items() if name.startswith(prefix)}
        for prefix in prefixes
    ]
