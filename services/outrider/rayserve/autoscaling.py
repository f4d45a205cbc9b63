"""The scaling policy as Ray Serve calls it, for the whole application at once.

    autoscaling_policy:
      policy_function: outrider.rayserve.autoscaling:ApplicationPolicy
      policy_kwargs: {verifier: {price: 4.0}, drafter: {price: 0.7}}     # scaling.ScalingSettings

Serve's controller calls it about ten times a second, between everything else it does: so it never waits, and
never raises. Serve sends this module to the controller by value: whatever it needs has to live elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.serve.config import AutoscalingContext

from outrider.rayserve.steering import Steering

Answer = tuple[dict[Any, float], dict[Any, dict[str, Any]]]
"""Replicas by deployment, and a state of each, which is not used."""


class ApplicationPolicy:
    """Decides about `verifier`, `drafter-NAME` and `gateway`; other deployments are left as they are."""

    def __init__(self, **settings: Any) -> None:
        self._steering = Steering(settings)

    def __call__(self, contexts: Mapping[Any, AutoscalingContext]) -> Answer:
        """Serve's protocol of policies of applications."""
        return self._steering(contexts), {}
