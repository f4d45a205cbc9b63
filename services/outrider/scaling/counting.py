"""What happened between two observations, and sums of it over time.

Counters of a replica are compared with what the same replica told before: one that is new, or was not heard
of in between, counts from now on, and one that starts anew (its counters are lower) from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

from outrider.scaling.observation import Observation, Pool
from outrider.scaling.signals import DrafterCounts, DrafterSignals, VerifierSignals


@dataclass(frozen=True, slots=True)
class VerifierTotals:
    """All verifiers that report, over a stretch of time. `*_s`: summed over its seconds."""

    seconds: float = 0.0
    replica_s: float = 0.0
    busy_s: float = 0.0  # of these: replicas with running sessions
    running_s: float = 0.0
    waiting_s: float = 0.0
    capacity_s: float = 0.0
    kv_usage_s: float = 0.0
    rounds: float = 0.0
    plain_rounds: float = 0.0
    tokens: float = 0.0
    step_s: float = 0.0  # seconds in forwards


@dataclass(frozen=True, slots=True)
class DrafterTotals:
    """All drafters of a kind that report, and what verifiers tell of the kind. `*_s`: summed over seconds."""

    replica_s: float = 0.0
    sessions_s: float = 0.0
    queued_s: float = 0.0
    capacity_s: float = 0.0
    asked: float = 0.0
    missed: float = 0.0
    accepted: float = 0.0


Totals = TypeVar("Totals", VerifierTotals, DrafterTotals)


@dataclass(frozen=True, slots=True)
class Sample:
    """What happened up to `at`, since the sample before."""

    at: float
    verifiers: VerifierTotals = VerifierTotals()
    drafters: Mapping[str, DrafterTotals] = field(default_factory=dict)  # by kind


def sample(before: Observation | None, now: Observation) -> Sample:
    """What happened between two observations; gauges count as they are at its end."""
    if before is None:
        return Sample(now.now, drafters={kind: DrafterTotals() for kind in now.drafters})
    seconds = max(0.0, now.now - before.now)
    pairs = _pairs(before.verifiers, now.verifiers)
    verifiers = total(VerifierTotals(seconds), (_verifier(old, new, seconds) for old, new in pairs))
    drafters = {
        kind: total(
            total(DrafterTotals(), (_seen(old, new, kind) for old, new in pairs)),
            (_drafter(new, seconds) for new in pool.reports.values()),
        )
        for kind, pool in now.drafters.items()
    }
    return Sample(now.now, verifiers, drafters)


def total(start: Totals, parts: Iterable[Totals]) -> Totals:
    """The sum of `start` and all parts."""
    every = [start, *parts]
    return type(start)(**{one.name: sum(getattr(part, one.name) for part in every) for one in fields(start)})


def verifiers_since(samples: Iterable[Sample], since: float) -> VerifierTotals:
    """Sum of what happened after `since`."""
    return total(VerifierTotals(), (one.verifiers for one in samples if one.at > since))


def drafters_since(samples: Iterable[Sample], since: float, kind: str) -> DrafterTotals:
    """Sum of what happened after `since`."""
    return total(
        DrafterTotals(), (one.drafters[kind] for one in samples if one.at > since and kind in one.drafters)
    )


def _pairs(
    before: Pool[VerifierSignals], now: Pool[VerifierSignals]
) -> list[tuple[VerifierSignals | None, VerifierSignals]]:
    return [(before.reports.get(name), new) for name, new in now.reports.items()]


def _verifier(old: VerifierSignals | None, new: VerifierSignals, seconds: float) -> VerifierTotals:
    since = new if old is None else old
    return VerifierTotals(
        replica_s=seconds,
        busy_s=seconds * (new.running > 0),
        running_s=seconds * new.running,
        waiting_s=seconds * new.waiting,
        capacity_s=seconds * new.capacity,
        kv_usage_s=seconds * new.kv_usage,
        rounds=_grown(since.rounds, new.rounds),
        plain_rounds=_grown(since.plain_rounds, new.plain_rounds),
        tokens=_grown(since.tokens, new.tokens),
        step_s=_grown(since.step_s, new.step_s),
    )


def _seen(old: VerifierSignals | None, new: VerifierSignals, kind: str) -> DrafterTotals:
    counts = new.drafters.get(kind, DrafterCounts())
    since = counts if old is None else old.drafters.get(kind, DrafterCounts())
    return DrafterTotals(
        asked=_grown(since.asked, counts.asked),
        missed=_grown(since.missed, counts.missed),
        accepted=_grown(since.accepted, counts.accepted),
    )


def _drafter(new: DrafterSignals, seconds: float) -> DrafterTotals:
    return DrafterTotals(
        replica_s=seconds,
        sessions_s=seconds * new.sessions,
        queued_s=seconds * new.queued,
        capacity_s=seconds * new.capacity,
    )


def _grown(before: float, now: float) -> float:
    return now - before if now >= before else now
