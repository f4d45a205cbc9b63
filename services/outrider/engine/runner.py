"""The interface between the engine and the two ways to run a model."""

from __future__ import annotations

from dataclasses import dataclass
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
    hidden: torch.Tensor | None = None  # [T, hidden_size] what the output head sees


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

    def forward(self, plan: StepPlan, rows: torch.Tensor, *, hidden: bool) -> RunnerOutput:
        """Run a step.

        Args:
            plan: packed rows and attention groups.
            rows: int64 [R] packed rows whose logits are wanted, R in rows.ROW_COUNTS, or empty.
            hidden: also return the hidden states of all packed rows.
        """
