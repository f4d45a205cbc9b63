"""What a replica tells the scaling policy, read from its metrics: `record_autoscaling_stats`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry

from outrider.config.schema import DrafterConfig, VerifierConfig
from outrider.scaling.signals import DrafterCounts, DrafterSignals, VerifierSignals, to_numbers
from outrider.telemetry import names

_SUM = "_sum"
_VERIFIER = (
    names.REQUESTS_RUNNING.name,
    names.REQUESTS_WAITING.name,
    names.KV_USAGE.name,
    names.ROUNDS.name,
    names.SPEC_ACCEPTED.name,
    names.ROUND_PART_TIME.name + _SUM,
    names.DRAFTER_ASKED.name,
    names.PROPOSALS_MISSED.name,
    names.DRAFTER_ACCEPTED.name,
)
_DRAFTER = (names.DRAFTER_SESSIONS.name, names.DRAFTER_QUEUED.name)


def verifier_stats(registry: CollectorRegistry, own: VerifierConfig) -> dict[str, float]:
    """`VerifierSignals` as numbers, from a verifier's metrics as they are now."""
    return to_numbers(verifier_signals(registry, own))


def drafter_stats(registry: CollectorRegistry, own: DrafterConfig) -> dict[str, float]:
    """`DrafterSignals` as numbers, from a drafter's metrics as they are now."""
    return to_numbers(drafter_signals(registry, own))


def verifier_signals(registry: CollectorRegistry, own: VerifierConfig) -> VerifierSignals:
    """How busy a verifier is, and what it has seen of its drafters."""
    page = _Page(registry, _VERIFIER)
    rounds = page.by(names.ROUNDS.name, names.LABEL_KIND)
    parts = page.by(names.ROUND_PART_TIME.name + _SUM, names.LABEL_PART)
    counted = {
        "asked": page.by(names.DRAFTER_ASKED.name, names.LABEL_DRAFTER),
        "missed": page.by(names.PROPOSALS_MISSED.name, names.LABEL_DRAFTER),
        "accepted": page.by(names.DRAFTER_ACCEPTED.name, names.LABEL_DRAFTER),
    }
    drafters = sorted({name for values in counted.values() for name in values})
    every_round = sum(rounds.values())
    return VerifierSignals(
        running=page.value(names.REQUESTS_RUNNING.name),
        waiting=page.value(names.REQUESTS_WAITING.name),
        capacity=own.max_sessions,
        kv_usage=page.value(names.KV_USAGE.name),
        rounds=every_round,
        plain_rounds=rounds.get("plain", 0.0),
        tokens=every_round + page.value(names.SPEC_ACCEPTED.name),  # each round's own, and accepted ones
        step_s=parts.get("forward", 0.0),
        drafters={
            drafter: DrafterCounts(**{key: values.get(drafter, 0.0) for key, values in counted.items()})
            for drafter in drafters
        },
    )


def drafter_signals(registry: CollectorRegistry, own: DrafterConfig) -> DrafterSignals:
    """How busy a drafter is."""
    page = _Page(registry, _DRAFTER)
    return DrafterSignals(
        sessions=page.value(names.DRAFTER_SESSIONS.name),
        queued=page.value(names.DRAFTER_QUEUED.name),
        capacity=own.max_sessions,
    )


class _Page:
    """Samples of some metrics, as they are now."""

    def __init__(self, registry: CollectorRegistry, wanted: tuple[str, ...]) -> None:
        self._samples = [
            (sample.name, sample.labels, float(sample.value))
            for family in registry.restricted_registry(wanted).collect()
            for sample in family.samples
        ]

    def value(self, name: str) -> float:
        """The sum over all labels; 0 if there is none yet."""
        return sum((value for _, value in self._of(name)), 0.0)

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values by one label."""
        return {labels[label]: value for labels, value in self._of(name)}

    def _of(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        return ((labels, value) for known, labels, value in self._samples if known == name)
