"""How fast a student learns, and how far it drafts on its own states, as training goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass

FLOOR = 0.03
"""Of the learning rate, at the end."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Warm-up, then a cosine; single passes first, then unrolled ones."""

    steps: int  # of the optimiser, in all
    rate: float = 2e-3  # highest learning rate
    warm_up: int = 60
    single: float = 0.5  # share of the steps before it unrolls
    unroll: int = 3

    def factor(self, step: int) -> float:
        """Of the learning rate in step `step` (from 0)."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return min(1.0, (step + 1) / (self.warm_up + 1)) * (cosine * (1 - FLOOR) + FLOOR)

    def unrolled(self, step: int) -> int:
        """Passes in step `step`."""
        return 1 if step < self.single * self.steps else self.unroll
