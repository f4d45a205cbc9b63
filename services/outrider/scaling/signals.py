"""What services tell about their load, as flat numbers: that is all that Ray Serve carries.

Counters only ever grow (a replica that starts anew begins at 0 again): whoever reads them takes differences.
Gauges are as they are now. Everything is of one replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

SEPARATOR = "/"
"""Between a counter's name and the drafter's that it is of: `missed/eagle`."""


@dataclass(frozen=True, slots=True)
class DrafterCounts:
    """What one verifier has seen of one drafter (all its replicas together) since the verifier started."""

    asked: float = 0.0  # rounds that asked for a proposal
    missed: float = 0.0  # of these: went on without it, it was late or never came
    accepted: float = 0.0  # draft tokens of it that were accepted


@dataclass(frozen=True, slots=True)
class VerifierSignals:
    """One verifier replica."""

    running: float = 0.0  # gauge: sessions in its steps
    waiting: float = 0.0  # gauge: sessions that wait for their first turn
    capacity: float = 0.0  # gauge: verifier.max_sessions
    kv_usage: float = 0.0  # gauge: 0 to 1
    rounds: float = 0.0  # counter: session rounds, with and without drafts
    plain_rounds: float = 0.0  # counter: of these, without drafts
    tokens: float = 0.0  # counter: tokens committed
    step_s: float = 0.0  # counter: seconds in forwards
    drafters: Mapping[str, DrafterCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrafterSignals:
    """One drafter replica."""

    sessions: float = 0.0  # gauge: sessions held
    queued: float = 0.0  # gauge: sessions that wait for a proposal
    capacity: float = 0.0  # gauge: max_sessions


def to_numbers(signals: VerifierSignals | DrafterSignals) -> dict[str, float]:
    """Flat numbers by name."""
    numbers = {name: float(getattr(signals, name)) for name in _scalars(type(signals))}
    if isinstance(signals, VerifierSignals):
        for drafter, counts in signals.drafters.items():
            numbers |= {
                f"{name}{SEPARATOR}{drafter}": float(getattr(counts, name))
                for name in _scalars(DrafterCounts)
            }
    return numbers


def verifier_from(numbers: Mapping[str, float]) -> VerifierSignals:
    """The inverse of `to_numbers`; what is missing is 0, what is not known is left out."""
    by_drafter: dict[str, dict[str, float]] = {}
    for key, value in numbers.items():
        name, separator, drafter = key.partition(SEPARATOR)
        if separator and name in _scalars(DrafterCounts):
            by_drafter.setdefault(drafter, {})[name] = value
    drafters = {drafter: DrafterCounts(**counts) for drafter, counts in by_drafter.items()}
    return VerifierSignals(
        **{name: numbers[name] for name in _scalars(VerifierSignals) if name in numbers}, drafters=drafters
    )


def drafter_from(numbers: Mapping[str, float]) -> DrafterSignals:
    """The inverse of `to_numbers`; what is missing is 0, what is not known is left out."""
    return DrafterSignals(**{name: numbers[name] for name in _scalars(DrafterSignals) if name in numbers})


def _scalars(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind) if one.name != "drafters")
