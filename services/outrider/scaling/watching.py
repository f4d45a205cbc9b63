"""Replicas that tell nothing, and verifiers that do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.scaling.observation import Pool, Signals
from outrider.scaling.signals import DrafterSignals, VerifierSignals


@dataclass(frozen=True, slots=True)
class Watched:
    """One replica."""

    heard_at: float  # it told something, or was seen for the first time
    moved_at: float  # a verifier: its work went on, or it had none
    work: tuple[float, ...] = ()  # counters that grow with work


def watch(before: Mapping[str, Watched], pool: Pool[Signals], now: float) -> dict[str, Watched]:
    """What is known of each replica that runs now."""
    return {name: _watched(before.get(name), signals, now) for name, signals in pool.replicas.items()}


def silent(watched: Mapping[str, Watched], pool: Pool[Signals], now: float, patience_s: float) -> int:
    """Replicas that run and have told nothing, but may yet do so."""
    return sum(
        signals is None and now - watched[name].heard_at < patience_s
        for name, signals in pool.replicas.items()
    )


def stuck(watched: Mapping[str, Watched], pool: Pool[VerifierSignals], now: float, stuck_s: float) -> int:
    """Verifiers that have sessions, and no step for long."""
    return sum(now - watched[name].moved_at >= stuck_s for name in pool.reports)


def _watched(before: Watched | None, signals: VerifierSignals | DrafterSignals | None, now: float) -> Watched:
    if before is None:
        before = Watched(now, now)
    if signals is None:
        return before
    if not isinstance(signals, VerifierSignals):
        return Watched(now, now)
    work = (signals.rounds, signals.step_s)
    return Watched(now, before.moved_at if signals.running > 0 and work == before.work else now, work)
