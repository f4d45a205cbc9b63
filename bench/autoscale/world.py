"""What the bench runs on: a Ray cluster of one node, and the application with its scaling policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.soak.world import DRAFT_MODEL, LOOKUP, config_of

VERIFIER, DRAFTER = "verifier", f"drafter-{DRAFT_MODEL}"
MOST = {VERIFIER: 2, DRAFTER: 3}
"""Upper bounds of replicas."""
SMALL = {"cpus": 0.1}


def arguments(model: str, folder: Path) -> dict[str, Any]:
    """Of the application: `tiny` random models, or the `demo`'s, in float32 both."""
    config = config_of(model, folder)
    if model == "tiny":  # another random model would have nothing accepted, and then nobody asks it
        config["drafters"][DRAFT_MODEL]["model"] = config["model"]
    # Many processes share few cores: a proposal that takes long is still worth waiting for.
    config["verifier"] |= {"max_sessions": 32, "drain_s": 2.0, "patience_ms": 5000, "max_misses": 100}
    config["gateway"] = {"failover_s": 60}
    return {
        "config": config,
        "loopback": True,
        "pools": {
            "gateway": SMALL,
            "verifier": SMALL | {"max_replicas": MOST[VERIFIER]},
            "drafters": {DRAFT_MODEL: SMALL | {"max_replicas": MOST[DRAFTER]}, LOOKUP: SMALL},
        },
    }


def policy(streams: int, worth: bool) -> dict[str, Any]:
    """`autoscaling_policy` for a peak of so many streams: short delays, so that a run takes minutes.

    Targets are such that the peak wants every replica there may be. Random models and processes that share
    few cores gain nothing by drafts: without `worth` drafters follow their load alone.
    """
    delays = {"up_delay_s": 2.0, "down_delay_s": 10.0}
    return {
        "policy_function": "outrider.rayserve.autoscaling:ApplicationPolicy",
        "policy_kwargs": {
            "load_window_s": 4.0,
            "verifier": {"price": 1.0, "target_sessions": streams / MOST[VERIFIER], **delays},
            "drafter": {
                "price": 0.1,
                "target_sessions": streams / MOST[DRAFTER],
                "target_queued": streams,
                "max_late": 0.9,
                **delays,
            },
            "worth": {"enabled": worth, "window_s": 20.0, "min_rounds": 200, "probe_s": 15.0},
        },
    }
