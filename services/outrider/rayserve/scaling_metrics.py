"""Decisions as metrics of the controller's process, which are served by Ray (`ray_...`)."""

from __future__ import annotations

from ray.util import metrics

from outrider.scaling import Decision
from outrider.telemetry import names


class ScalingMetrics:
    """What was decided, and why."""

    def __init__(self) -> None:
        replicas, wanted, decisions = names.SCALING_REPLICAS, names.SCALING_WANTED, names.SCALING_DECISIONS
        self._replicas = metrics.Gauge(replicas.name, replicas.help, replicas.labels)
        self._wanted = metrics.Gauge(wanted.name, wanted.help, wanted.labels)
        # Ray adds the suffix of counters itself.
        self._decisions = metrics.Counter(
            decisions.name.removesuffix("_total"), decisions.help, decisions.labels
        )

    def decided(self, decision: Decision) -> None:
        """Tell of one decision."""
        pool = {names.LABEL_DEPLOYMENT: decision.pool}
        self._replicas.set(decision.replicas, pool)
        self._wanted.set(decision.wish.count, pool)
        if decision.changed:
            self._decisions.inc(1, pool | {names.LABEL_REASON: decision.wish.why.value})
