"""The interface between the engine and the two ways to run a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from outrider.engine.attention import AttentionKind
from outrider.engine.kv_store import KvStore
from outrider.engine.plan import StepPlan
from outrider.engine.rows import Projection


@dataclass(slots=True)
class RunnerOutput:
    """What a packed forward gives."""

    logits: torch.Tensor  # [rows wanted, vocabulary], in the model's type or float32
    features: Mapping[str, torch.Tensor] = field(default_factory=dict)  # by name: [T, hidden_size]


class Runner(Protocol):
    """A model that runs packed rows against the paged pool."""

    @property
    def store(self) -> KvStore: ...

    @property
    def attention_kinds(self) -> list[AttentionKind]:
        """How each layer attends."""

    @property
    def projections(self) -> list[Projection]:
        """All linear layers, to calibrate their row policies."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""

    @property
    def features(self) -> frozenset[str]:
        """Names of the hidden states that a forward can give (see core.features)."""

    def forward(self, plan: StepPlan, rows: torch.Tensor, *, features: Collection[str] = ()) -> RunnerOutput:
        """Run a step.

        Args:
            plan: packed rows and attention groups.
            rows: int64 [R] packed rows whose logits are wanted, R in rows.ROW_COUNTS, or empty.
            features: hidden states wanted, of all packed rows. They change nothing about the logits.
        """
