"""Between Serve's contexts and the pure policy: signals in, numbers of replicas out, reasons into the log."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from ray.serve.config import AutoscalingContext

from outrider.config.explaining import explain
from outrider.core.errors import ConfigError
from outrider.rayserve.scaling_metrics import ScalingMetrics
from outrider.scaling import Decision, Memory, Observation, Pool, ScalingSettings, decide
from outrider.scaling.observation import VERIFIER, drafter_pool
from outrider.scaling.signals import DrafterSignals, VerifierSignals, drafter_from, verifier_from

# The controller's own log file: the only one that is kept of what its process says.
_log = logging.getLogger("ray.serve")

GATEWAY = "gateway"
COMPLAIN_S = 60.0
"""Time between two complaints about the same failure."""


def read_settings(given: Mapping[str, Any]) -> ScalingSettings:
    """The settings in `policy_kwargs`.

    Raises:
        ConfigError: each value that is wrong, what was given, what is allowed.
    """
    try:
        return ScalingSettings.model_validate(given)
    except ValidationError as error:
        raise ConfigError(explain(error, "policy_kwargs", ScalingSettings)) from None


class Steering:
    """The policy with its memory. Whatever goes wrong keeps all numbers as they are."""

    def __init__(
        self,
        given: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._memory = Memory()
        self._next = -math.inf
        self._complained = -math.inf
        self._told: dict[str, str] = {}
        self._metrics = ScalingMetrics()
        self._settings: ScalingSettings | None = None
        try:
            self._settings = read_settings(given)
        except ConfigError as error:
            _log.error("nothing is scaled: %s", error)

    def __call__(self, contexts: Mapping[Any, AutoscalingContext]) -> dict[Any, float]:
        """Numbers of replicas by deployment; those that are left out stay as they are."""
        if self._settings is None or self._clock() < self._next:
            return {}
        self._next = self._clock() + self._settings.interval_s
        try:
            return self._decide(self._settings, contexts)
        except Exception:  # noqa: BLE001  the controller has more to do than to scale
            if self._clock() - self._complained >= COMPLAIN_S:
                self._complained = self._clock()
                _log.exception("numbers of replicas stay as they are: the scaling policy failed")
            return {}

    def _decide(
        self, settings: ScalingSettings, contexts: Mapping[Any, AutoscalingContext]
    ) -> dict[Any, float]:
        by_name = {context.deployment_name: (key, context) for key, context in contexts.items()}
        answer: dict[Any, float] = {}
        if GATEWAY in by_name:
            key, context = by_name[GATEWAY]
            answer[key] = gateways(context)
        if VERIFIER not in by_name and not any(_kind(name) for name in by_name):
            return answer
        observation = self._observation(settings, {name: one for name, (_, one) in by_name.items()})
        self._memory, decisions = decide(settings, self._memory, observation)
        for name, decision in decisions.items():
            if name in by_name:
                answer[by_name[name][0]] = decision.replicas
                self._tell(decision)
        return answer

    def _observation(
        self, settings: ScalingSettings, contexts: Mapping[str, AutoscalingContext]
    ) -> Observation:
        oldest = self._wall_clock() - settings.silent_s
        verifiers: Pool[VerifierSignals] = Pool(0, 0, 0)
        drafters: dict[str, Pool[DrafterSignals]] = {}
        for name, context in contexts.items():
            if name == VERIFIER:
                verifiers = _pool(context, verifier_from, oldest)
            elif kind := _kind(name):
                drafters[kind] = _pool(context, drafter_from, oldest)
        return Observation(self._clock(), verifiers, drafters)

    def _tell(self, decision: Decision) -> None:
        self._metrics.decided(decision)
        # A number that is wanted and not yet given is told once, not each second until its delay is over.
        waits = "" if decision.allowed == decision.replicas else f"{decision.allowed > decision.replicas}"
        news = decision.changed or (waits and self._told.get(decision.pool) != waits)
        _log.log(logging.INFO if news else logging.DEBUG, "scaling: %s", decision)
        self._told[decision.pool] = "" if decision.changed else waits


def gateways(context: AutoscalingContext) -> float:
    """Gateways wanted by the requests that Serve counts; Serve's own delays come on top."""
    each = context.config.get_target_ongoing_requests() if context.config is not None else 1.0
    return float(max(1.0, context.total_num_requests / each))


def _kind(deployment: str) -> str:
    """The kind of drafter of a deployment; empty: it has none."""
    prefix = drafter_pool("")
    return deployment.removeprefix(prefix) if deployment.startswith(prefix) else ""


def _pool(
    context: AutoscalingContext, read: Callable[[Mapping[str, float]], Any], oldest: float
) -> Pool[Any]:
    told: dict[Any, dict[str, float]] = {}
    for name, by_replica in (context.raw_metrics or {}).items():
        for replica, series in by_replica.items():
            if series and series[-1].timestamp >= oldest:
                told.setdefault(replica, {})[name] = float(series[-1].value)
    return Pool(
        target=context.target_num_replicas,
        lowest=context.capacity_adjusted_min_replicas,
        highest=context.capacity_adjusted_max_replicas,
        replicas={
            str(replica): read(told[replica]) if _has_signals(told.get(replica)) else None
            for replica in context.running_replicas
        },
    )


def _has_signals(numbers: Mapping[str, float] | None) -> bool:
    """Serve adds a number of its own, also where the replica has told nothing."""
    return numbers is not None and "capacity" in numbers
