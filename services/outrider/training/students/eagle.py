"""EAGLE heads: one layer that goes on from the target's own hidden states."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from outrider.core.features import LAST_HIDDEN, hidden_after
from outrider.training.data.shards import Sample
from outrider.training.students.layer import (
    QUIET,
    DecoderLayer,
    LayerSizes,
    Passes,
    Rotary,
    project,
    rms_norm,
)
from outrider.training.students.packing import Packed, pack, shifted
from outrider.training.students.student import Student, divergence
from outrider.training.target import Teacher

POSITIONS = 8192
"""Longest conversation that can be learnt from."""


class EagleStudent(Student, abc.ABC):
    """Row i joins what the target thought at token i with token i + 1, and foretells token i + 2."""

    def __init__(self, teacher: Teacher, *, compute: torch.dtype, device: str, wide: bool) -> None:
        """`wide`: attention sees embedding and state beside each other."""
        super().__init__(teacher, compute=compute, device=device)
        sizes = LayerSizes.of(teacher, wide=wide)
        self.layer = DecoderLayer(sizes, teacher.last_layer())
        with torch.no_grad():
            for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                self.layer.named_weights()[name].mul_(QUIET)
        final = teacher.final_norm()
        self.norm = nn.Parameter(torch.ones(sizes.hidden) if final is None else final.float().clone())
        self.head = nn.Parameter(teacher.head.float().cpu().clone())
        self._rotary = Rotary(sizes, teacher.rope_parameters, POSITIONS, device)

    @abc.abstractmethod
    def entry(self, packed: Packed) -> torch.Tensor:
        """States [rows, hidden] made of the target's."""

    @abc.abstractmethod
    def advance(
        self, states: torch.Tensor, embedded: torch.Tensor, packed: Packed, passes: Passes
    ) -> torch.Tensor:
        """States of the rows after these, as they are handed on."""

    @abc.abstractmethod
    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[rows, columns] after states that `advance` gave."""

    def loss(self, samples: Sequence[Sample], unroll: int) -> tuple[torch.Tensor, int]:
        packed = pack(samples, self.device)
        scored = packed.answered(2)
        taught = self.teacher.log_probs(shifted(packed.features[LAST_HIDDEN], -1)[scored])
        order = scored.cumsum(0) - 1
        total = torch.zeros((), device=self.device)
        for number, states in enumerate(self._drafted(packed, unroll)):
            own = scored & (packed.positions >= number)
            if bool(own.any()):
                total = total + divergence(taught[order[own]], self.logits(states[own]))
        return total / unroll, int(scored.sum())

    @torch.no_grad()
    def hits(self, samples: Sequence[Sample], depth: int) -> torch.Tensor:
        packed = pack(samples, self.device)
        right = packed.answered(1 + depth) & packed.answered(2)
        counts = [right.sum()]
        for number, states in enumerate(self._drafted(packed, depth)):
            picks = self.teacher.draft_ids[self.logits(states).argmax(-1)]
            # The draft that began at row i is at row i + number now.
            right = right & shifted(picks == shifted(packed.token_ids, -2), -number)
            counts.append(right.sum())
        return torch.stack(counts).cpu()

    def _drafted(self, packed: Packed, count: int) -> list[torch.Tensor]:
        """States of `count` passes; each stands on those that the one before gave a row earlier."""
        embedded = self.teacher.embedding[shifted(packed.token_ids, -1)].to(self.compute)
        states, passes = self.entry(packed), Passes()
        every: list[torch.Tensor] = []
        for number in range(count):
            if number:
                states = shifted(states, 1)
            states = self.advance(states, embedded, packed, passes)
            every.append(states)
        return every

    def _shared_config(self) -> dict[str, Any]:
        sizes = self.layer.sizes
        return {
            "model_type": "llama",
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.inner,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "rms_norm_eps": sizes.eps,
            "rope_parameters": self.teacher.rope_parameters,
            "vocab_size": self.teacher.target.info.vocab_size,
            "draft_vocab_size": len(self.teacher.draft_ids),
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }

    def _shared_tensors(self) -> dict[str, torch.Tensor]:
        ids = self.teacher.draft_ids.cpu()
        known = torch.zeros(self.teacher.target.info.vocab_size, dtype=torch.bool)
        return {
            "norm.weight": self.norm,
            "lm_head.weight": self.head,
            "d2t": ids - torch.arange(len(ids)),
            "t2d": known.index_fill(0, ids, True),
        }


class Eagle(EagleStudent):
    """EAGLE (arXiv 2401.15077) with norms: `fc` joins normed embedding and state.

    The state of a true row is made of hidden states after four layers, as in EAGLE-3, each normed; `entry`
    joins them. What the layer gives is normed as the target's own last state is, and is the next state.
    """

    def __init__(self, teacher: Teacher, *, compute: torch.dtype, device: str) -> None:
        super().__init__(teacher, compute=compute, device=device, wide=False)
        layers = teacher.target.info.num_layers
        self._joined = tuple(dict.fromkeys((2, layers // 2, layers - 3, layers)))
        self.features = (*map(hidden_after, self._joined[:-1]), LAST_HIDDEN)
        hidden, count = teacher.hidden_size, len(self._joined)
        fresh = torch.randn(hidden, hidden) * hidden**-0.5
        self.fc = nn.Parameter(torch.cat((fresh, torch.eye(hidden)), 1))
        joined = torch.randn(hidden, count * hidden) * 0.01
        joined[:, -hidden:] += torch.eye(hidden)
        self.entry_weight = nn.Parameter(joined)
        self.entry_norms = nn.ParameterList([torch.ones(hidden) for _ in self._joined])
        self.embedding_norm = nn.Parameter(torch.ones(hidden))
        final = teacher.final_norm()
        self._final = (torch.ones(hidden) if final is None else final.float()).to(device)
        self.to(device)

    def entry(self, packed: Packed) -> torch.Tensor:
        eps = self.layer.sizes.eps
        # Normed anew, the last hidden state less its norm's weight is what the residual stream would give.
        last = packed.features[LAST_HIDDEN].to(self.compute) / self._final.to(self.compute)
        states = [packed.features[hidden_after(number)].to(self.compute) for number in self._joined[:-1]]
        pairs = zip((*states, last), self.entry_norms, strict=True)
        joined = torch.cat([rms_norm(state, norm, eps) for state, norm in pairs], -1)
        return rms_norm(project(joined, self.entry_weight), self.norm, eps)

    def advance(
        self, states: torch.Tensor, embedded: torch.Tensor, packed: Packed, passes: Passes
    ) -> torch.Tensor:
        eps = self.layer.sizes.eps
        stream = project(torch.cat((rms_norm(embedded, self.embedding_norm, eps), states), -1), self.fc)
        seen = self.layer.norm("input_layernorm", stream)
        stream = self.layer(stream, seen, self._rotary, packed.positions, packed.segments, passes)
        return rms_norm(stream, self.norm, eps)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return project(states, self.head)

    def tensors(self) -> dict[str, torch.Tensor]:
        layer = {f"layers.0.{name}": own for name, own in self.layer.named_weights().items()}
        norms = {f"fc_norm.{number}.weight": own for number, own in enumerate(self.entry_norms)}
        own = {"fc.weight": self.fc, "entry.weight": self.entry_weight}
        own["embedding_norm.weight"] = self.embedding_norm
        return own | norms | layer | self._shared_tensors()

    def published_config(self) -> dict[str, Any]:
        own = {"norm_output": True, "fc_norm": True, "eagle_aux_hidden_state_layer_ids": list(self._joined)}
        return {"architectures": ["LlamaForCausalLM"]} | own | self._shared_config()


class Eagle3(EagleStudent):
    """EAGLE-3 (arXiv 2503.01840): hidden states after three layers; attention sees embedding and state."""

    def __init__(self, teacher: Teacher, *, compute: torch.dtype, device: str) -> None:
        super().__init__(teacher, compute=compute, device=device, wide=True)
        layers = teacher.target.info.num_layers
        self._joined = tuple(map(hidden_after, (2, layers // 2, layers - 3)))
        self.features = tuple(dict.fromkeys((*self._joined, LAST_HIDDEN)))
        hidden = teacher.hidden_size
        joined = torch.randn(hidden, 3 * hidden) * 0.01
        joined[:, -hidden:] += torch.eye(hidden)
        self.fc = nn.Parameter(joined)
        self.hidden_norm = nn.Parameter(torch.ones(hidden))
        self.to(device)

    def entry(self, packed: Packed) -> torch.Tensor:
        joined = torch.cat([packed.features[name] for name in self._joined], -1)
        return project(joined.to(self.compute), self.fc)

    def advance(
        self, states: torch.Tensor, embedded: torch.Tensor, packed: Packed, passes: Passes
    ) -> torch.Tensor:
        normed = rms_norm(states, self.hidden_norm, self.layer.sizes.eps)
        seen = torch.cat((self.layer.norm("input_layernorm", embedded), normed), -1)
        given: torch.Tensor = self.layer(
            states, seen, self._rotary, packed.positions, packed.segments, passes
        )
        return given

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return project(rms_norm(states, self.norm, self.layer.sizes.eps), self.head)

    def tensors(self) -> dict[str, torch.Tensor]:
        layer = {f"midlayer.{name}": own for name, own in self.layer.named_weights().items()}
        own = {"fc.weight": self.fc, "midlayer.hidden_norm.weight": self.hidden_norm}
        return own | layer | self._shared_tensors()

    def published_config(self) -> dict[str, Any]:
        return {"architectures": ["LlamaForCausalLMEagle3"]} | self._shared_config()
