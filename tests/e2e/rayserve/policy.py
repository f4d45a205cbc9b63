"""The scaling policy of the shared application. It decides nothing while numbers of replicas are fixed."""

from __future__ import annotations

from typing import Any

TARGET = 2.0
"""Sessions that a verifier is to have."""
POLICY: dict[str, Any] = {
    "policy_function": "outrider.rayserve.autoscaling:ApplicationPolicy",
    "policy_kwargs": {
        "load_window_s": 2.0,
        "verifier": {"target_sessions": TARGET, "up_delay_s": 1.0, "down_delay_s": 3.0},
    },
}
