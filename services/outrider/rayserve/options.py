"""What the arguments of the application mean as options of Serve deployments."""

from __future__ import annotations

from typing import Any

from outrider.config import OutriderConfig
from outrider.config.processes import ENVIRONMENT
from outrider.rayserve.arguments import Pool, Pools
from outrider.rayserve.autoscaling_options import followed_by_policy, followed_by_requests

CLOSE_S = 8.0
"""For stopping a replica, beside what it drains: last commits, streams, traces."""
IDLE_LOOP_S = 0.1
"""How long Serve waits before it looks whether calls through it run in a replica that is to stop. Calls
between services go past Serve, so there are none."""
SURGE_PERCENT = 100
"""Where there may be a single replica, an update starts the new one before it stops the old one. If there is
no room for both, the old one serves on until there is."""
GATEWAY_STREAMS = 200
"""More streams than that for each gateway, and Serve starts another one, if it may."""
HEALTH_PERIOD_S = 1.0
"""Three failures in a row have a replica replaced."""
HEALTH_TIMEOUT_S = 10.0
REGISTRY_CALLS = 1000
"""Calls at once. Each replica has one or two on their way."""


def verifier_options(config: OutriderConfig, pools: Pools) -> dict[str, Any]:
    """Of the deployment `verifier`. If tensor parallel, a replica has a bundle for each of its ranks."""
    ranks, pool = config.verifier.tensor_parallel, pools.verifier
    options = _service(pool, config.verifier.drain_s + CLOSE_S, scales(pools)) | _surge(pool)
    if ranks == 1:
        return options
    options["placement_group_bundles"] = [_resources(pool) for _ in range(ranks)]
    options["placement_group_strategy"] = "PACK"
    options["ray_actor_options"].pop("label_selector", None)
    if pool.labels:
        options["placement_group_bundle_label_selector"] = [pool.labels]
    return options


def drafter_options(name: str, pools: Pools) -> dict[str, Any]:
    """Of the deployment `drafter-NAME`."""
    return _service(pools.drafters.get(name, Pool()), CLOSE_S, scales(pools))


def scales(pools: Pools) -> bool:
    """Whether the number of verifiers or drafters of any kind may change."""
    return any(one.min_replicas != one.max_replicas for one in (pools.verifier, *pools.drafters.values()))


def gateway_options(config: OutriderConfig, pool: Pool) -> dict[str, Any]:
    """Of the deployment `gateway`. Serve drains it: it waits for the streams that go through Serve."""
    numbers: dict[str, Any] = {"num_replicas": pool.min_replicas}
    if pool.min_replicas != pool.max_replicas:
        scaling = followed_by_requests(pool.min_replicas, pool.max_replicas, GATEWAY_STREAMS)
        numbers = {"autoscaling_config": scaling}
    return {
        **_replica(pool, config.gateway.request_timeout_s + CLOSE_S),
        **numbers,
        **_surge(pool),
        "max_ongoing_requests": config.gateway.max_connections,
    }


def registry_options() -> dict[str, Any]:
    """Of the deployment `registry`."""
    return {
        "num_replicas": 1,
        "ray_actor_options": {"num_cpus": 0},
        "max_ongoing_requests": REGISTRY_CALLS,
        "logging_config": {"enable_access_log": False},  # several lines a second of each replica
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "graceful_shutdown_wait_loop_s": IDLE_LOOP_S,
    }


def actor_options(pool: Pool) -> dict[str, Any]:
    """What a replica's actor takes, and where it may run."""
    options: dict[str, Any] = {
        "num_cpus": pool.cpus,
        "num_gpus": pool.gpus,
        "runtime_env": {"env_vars": environment(pool)},
    }
    if pool.labels:
        options["label_selector"] = pool.labels
    return options


def environment(pool: Pool) -> dict[str, str]:
    """Environment variables of a replica's process."""
    return ENVIRONMENT | pool.env


def _service(pool: Pool, stop_s: float, scaled: bool) -> dict[str, Any]:
    """Of verifiers and drafters: so many, or bounds between which the application's policy decides.

    Where one pool is `scaled`, all have bounds, if only a single number: Serve shows the policy none of the
    others, and how many drafters are wanted is told by the verifiers.
    """
    lowest, highest = pool.min_replicas, pool.max_replicas
    if not scaled:
        return _replica(pool, stop_s) | {"num_replicas": lowest}
    return _replica(pool, stop_s) | {"autoscaling_config": followed_by_policy(lowest, highest)}


def _replica(pool: Pool, stop_s: float) -> dict[str, Any]:
    return {
        "ray_actor_options": actor_options(pool),
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "graceful_shutdown_wait_loop_s": IDLE_LOOP_S,
        "graceful_shutdown_timeout_s": stop_s,
    }


def _surge(pool: Pool) -> dict[str, Any]:
    return {"max_surge_percent": SURGE_PERCENT} if pool.min_replicas == 1 else {}


def _resources(pool: Pool) -> dict[str, float]:
    bundle = {"CPU": pool.cpus, "GPU": pool.gpus}
    return {name: amount for name, amount in bundle.items() if amount}
