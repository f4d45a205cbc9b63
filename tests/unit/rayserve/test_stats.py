"""What replicas tell the policy is what their metrics say."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from outrider.config.schema import DrafterConfig, VerifierConfig
from outrider.rayserve.stats import drafter_signals, drafter_stats, verifier_signals, verifier_stats
from outrider.scaling.signals import (
    DrafterCounts,
    DrafterSignals,
    VerifierSignals,
    drafter_from,
    verifier_from,
)
from outrider.telemetry.metrics import DrafterMetrics, VerifierMetrics

VERIFIER, DRAFTER = VerifierConfig(max_sessions=9), DrafterConfig(max_sessions=7)


def test_before_any_metric_there_are_zeros() -> None:
    assert verifier_signals(CollectorRegistry(), VERIFIER) == VerifierSignals(capacity=9)
    assert drafter_signals(CollectorRegistry(), DRAFTER) == DrafterSignals(capacity=7)


def test_a_verifier() -> None:
    registry = CollectorRegistry()
    metrics = VerifierMetrics(registry, "m")
    metrics.load(running=3, waiting=2, kv_usage=0.25)
    metrics.round(drafted=0, accepted=0)
    metrics.round(drafted=4, accepted=3)
    metrics.step_time("forward", 0.5)
    metrics.step_time("forward", 0.25)
    metrics.step_time("sampling", 9.0)
    metrics.drafter_round("eagle", asked=True, drafted=4, accepted=3)
    metrics.drafter_round("eagle", asked=False)
    metrics.drafter_round("lookup", asked=True)
    metrics.missed("lookup")
    expected = VerifierSignals(
        running=3,
        waiting=2,
        capacity=9,
        kv_usage=0.25,
        rounds=2,
        plain_rounds=1,
        tokens=5,
        step_s=0.75,
        drafters={
            "eagle": DrafterCounts(asked=1, accepted=3),
            "lookup": DrafterCounts(asked=1, missed=1),
        },
    )
    assert verifier_signals(registry, VERIFIER) == expected
    numbers = verifier_stats(registry, VERIFIER)
    assert verifier_from(numbers) == expected
    assert {type(one) for one in numbers.values()} == {float}  # Serve takes nothing else


def test_a_drafter() -> None:
    registry = CollectorRegistry()
    metrics = DrafterMetrics(registry, "m")
    metrics.load(sessions=4, queued=2, kv_usage=0.5)
    metrics.proposal(tokens=3, seconds=0.25, run_ahead_hit=False)
    metrics.proposal(tokens=3, seconds=0.5, run_ahead_hit=True)
    expected = DrafterSignals(sessions=4, queued=2, capacity=7)
    assert drafter_signals(registry, DRAFTER) == expected
    assert drafter_from(drafter_stats(registry, DRAFTER)) == expected
