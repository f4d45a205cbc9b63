"""Serve's own autoscaling options of a deployment that `autoscaling.ApplicationPolicy` decides about."""

from __future__ import annotations

from typing import Any

REPORT_S = 1.0
"""How often a replica tells its signals."""
LOOK_BACK_S = 2.0
"""What Serve keeps of them. The policy wants the last ones only, and has windows of its own."""


def followed_by_policy(lowest: int, highest: int) -> dict[str, Any]:
    """`autoscaling_config` of verifiers and drafters.

    Serve puts its delays on top of an application's policy, which has its own and says why: so Serve's are
    0. A drafter that may go to zero is there at the start, ready for the first session.
    """
    return {
        "min_replicas": lowest,
        "max_replicas": highest,
        "initial_replicas": max(1, lowest),
        "metrics_interval_s": REPORT_S,
        "look_back_period_s": LOOK_BACK_S,
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 0.0,
        "downscale_to_zero_delay_s": 0.0,
    }


def followed_by_requests(lowest: int, highest: int, streams: float) -> dict[str, Any]:
    """`autoscaling_config` of gateways, whose requests Serve counts itself: `streams` for each of them."""
    return {"min_replicas": lowest, "max_replicas": highest, "target_ongoing_requests": streams}
