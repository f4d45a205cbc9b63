"""What a policy sees, and what it answers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from outrider.scaling.signals import DrafterSignals, VerifierSignals

Signals = TypeVar("Signals", VerifierSignals, DrafterSignals)

VERIFIER = "verifier"
"""Name of the verifiers' pool in decisions; drafters' pools are called by the kind, with a prefix."""


def drafter_pool(name: str) -> str:
    """Name of the pool of a kind of drafter."""
    return f"drafter-{name}"


@dataclass(frozen=True, slots=True)
class Pool(Generic[Signals]):
    """Replicas of one deployment."""

    target: int  # replicas that are asked for
    lowest: int  # never fewer
    highest: int  # never more
    replicas: Mapping[str, Signals | None] = field(default_factory=dict)  # that run; None: nothing fresh told

    @property
    def reports(self) -> Mapping[str, Signals]:
        """What was told, by replica."""
        return {name: one for name, one in self.replicas.items() if one is not None}


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything at one moment."""

    now: float  # seconds; only differences count
    verifiers: Pool[VerifierSignals]
    drafters: Mapping[str, Pool[DrafterSignals]] = field(default_factory=dict)  # by kind


class Why(enum.Enum):
    """The kind of a reason; a label of metrics."""

    NO_DATA = "no_data"  # nobody has told anything
    SESSIONS = "sessions"
    KV = "kv"
    QUEUE = "queue"
    LATE = "late"
    IDLE = "idle"  # no sessions for long
    WORTH = "worth"  # fewer give more tokens per cost
    NOT_WORTH = "not_worth"  # none give more tokens per cost
    PROBE = "probe"  # is tried again
    SILENT = "silent"  # kept: somebody has not reported


@dataclass(frozen=True, slots=True)
class Wish:
    """How many replicas there should be, by what is known now."""

    count: int
    why: Why
    reason: str  # one line
    at_once: bool = False  # what it rests on was awaited already: no further delay


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there shall be."""

    pool: str
    before: int
    replicas: int
    wish: Wish
    allowed: int  # the wish within bounds

    @property
    def changed(self) -> bool:
        """Whether anything comes or goes."""
        return self.replicas != self.before

    def __str__(self) -> str:
        """One line for people."""
        if self.changed:
            return f"{self.pool} {self.before} -> {self.replicas}: {self.wish.reason}"
        if self.allowed != self.replicas:
            return f"{self.pool} stays at {self.replicas} (wants {self.wish.count}): {self.wish.reason}"
        return f"{self.pool} stays at {self.replicas}: {self.wish.reason}"
