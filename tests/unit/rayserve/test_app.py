"""The application that is built of arguments: its deployments, and their options."""

from __future__ import annotations

from typing import Any

import pytest
from ray.serve import Application
from ray.serve._private.build_app import build_app

from outrider.core.errors import ConfigError
from outrider.rayserve import build

# It is the setting that acts in this version of Ray, whatever will replace it.
pytestmark = pytest.mark.filterwarnings("ignore:The `metrics_interval_s` field:DeprecationWarning")

CONFIG = {"model": "m", "drafters": {"eagle": {"method": "eagle", "model": "e"}, "lookup": {}}}


def deployments(args: Any) -> dict[str, Any]:
    """Deployments by name, as Serve builds them."""
    app = build(args)
    assert isinstance(app, Application)
    return {one.name: one for one in build_app(app, name="outrider").deployments}


def options(args: Any, name: str) -> dict[str, Any]:
    """Of a deployment's actors."""
    found: dict[str, Any] = deployments(args)[name].ray_actor_options
    return found


def test_there_is_a_deployment_for_each_part() -> None:
    found = deployments({"config": CONFIG})
    assert set(found) == {"gateway", "verifier", "registry", "drafter-eagle", "drafter-lookup"}
    assert all(one.num_replicas == 1 for one in found.values())
    assert found["drafter-lookup"].init_args[1] == "lookup"
    assert found["verifier"].init_args[0].registry.kind == "ray", "static lists make no sense here"


def test_hearts_beat_slower_through_serve_unless_the_configuration_says() -> None:
    def heartbeat(**registry: Any) -> float:
        args = {"config": {**CONFIG, "registry": registry}}
        found: float = deployments(args)["verifier"].init_args[0].registry.heartbeat_s
        return found

    assert heartbeat() == heartbeat(kind="ray") == 1.0
    assert heartbeat(heartbeat_s=0.3) == 0.3
    assert heartbeat(lease_s=1.5) == 0.5, "a lease holds for two heartbeats at least"


def test_with_redis_there_is_no_registry() -> None:
    found = deployments({"config": {**CONFIG, "registry": {"kind": "redis"}}})
    assert "registry" not in found and found["gateway"].init_args[0].registry.kind == "redis"


def test_pools_become_options() -> None:
    pool = {"cpus": 2, "gpus": 1, "labels": {"tier": "verify"}, "env": {"GOMP_SPINCOUNT": "0", "A": "b"}}
    args = {"config": CONFIG, "pools": {"verifier": pool, "drafters": {"eagle": {"min_replicas": 0}}}}
    found = options(args, "verifier")
    assert (found["num_cpus"], found["num_gpus"], found["label_selector"]) == (2, 1, {"tier": "verify"})
    environment = found["runtime_env"]["env_vars"]
    assert (environment["GOMP_SPINCOUNT"], environment["A"]) == ("0", "b"), "what the user says stands"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert "label_selector" not in options(args, "gateway")


@pytest.mark.parametrize("name", ["verifier", "drafter-eagle"])
def test_bounds_become_those_of_autoscaling_whose_delays_are_the_policys(name: str) -> None:
    pool = {"min_replicas": 1, "max_replicas": 3}
    args = {"config": CONFIG, "pools": {"verifier": pool, "drafters": {"eagle": pool}}}
    scaling = deployments(args)[name]._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 3)
    assert scaling.upscale_delay_s == scaling.downscale_delay_s == 0


def test_where_one_pool_scales_the_policy_is_shown_all_of_them() -> None:
    args = {"config": CONFIG, "pools": {"drafters": {"eagle": {"max_replicas": 3}}}}
    found = deployments(args)
    bounds = {
        name: (one.min_replicas, one.max_replicas)
        for name in ("verifier", "drafter-eagle", "drafter-lookup")
        if (one := found[name]._deployment_config.autoscaling_config) is not None
    }
    assert bounds == {"verifier": (1, 1), "drafter-eagle": (1, 3), "drafter-lookup": (1, 1)}
    assert found["gateway"]._deployment_config.autoscaling_config is None


def test_a_drafter_may_have_no_replica() -> None:
    pools = {"drafters": {"eagle": {"min_replicas": 0, "max_replicas": 2}}}
    scaling = deployments({"config": CONFIG, "pools": pools})["drafter-eagle"]
    assert scaling._deployment_config.autoscaling_config.min_replicas == 0


def test_a_tensor_parallel_verifier_has_a_bundle_for_each_rank() -> None:
    config = {**CONFIG, "verifier": {"tensor_parallel": 4}}
    pool = {"cpus": 8, "gpus": 1, "labels": {"tier": "verify"}}
    replica = deployments({"config": config, "pools": {"verifier": pool}})["verifier"]._replica_config
    assert replica.placement_group_bundles == [{"CPU": 8, "GPU": 1}] * 4
    assert replica.placement_group_bundle_label_selector == [{"tier": "verify"}] * 4
    assert (replica.ray_actor_options["num_cpus"], replica.ray_actor_options["num_gpus"]) == (8, 1)
    assert "label_selector" not in replica.ray_actor_options, "the bundles choose the node"


def test_a_replica_may_take_as_long_to_stop_as_it_drains() -> None:
    found = deployments({"config": {**CONFIG, "verifier": {"drain_s": 60.0}}})
    assert found["verifier"]._deployment_config.graceful_shutdown_timeout_s > 60
    gateway = found["gateway"]._deployment_config
    assert gateway.graceful_shutdown_timeout_s > 600 and gateway.max_ongoing_requests == 4096


def test_an_update_starts_the_new_one_first_where_there_is_only_one() -> None:
    def surge(replicas: int) -> list[int]:
        pool = {"min_replicas": replicas, "max_replicas": replicas}
        pools = {"gateway": pool, "verifier": pool, "drafters": {"eagle": pool}}
        found = deployments({"config": CONFIG, "pools": pools})
        names = ("gateway", "verifier", "drafter-eagle")
        return [found[name]._deployment_config.max_surge_percent for name in names]

    assert surge(1) == [100, 100, 0], "without a drafter all goes on, only slower"
    assert surge(2) == [0, 0, 0]


def test_replicas_listen_on_loopback_only_if_they_are_told() -> None:
    def hosts(**more: Any) -> set[str]:
        config = deployments({"config": CONFIG, **more})["verifier"].init_args[0]
        return {config.verifier.host, config.gateway.host, *(one.host for one in config.drafters.values())}

    assert hosts(loopback=True) == {"127.0.0.1"}
    assert "127.0.0.1" not in hosts()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"config": {"registry": {"kind": "static"}}}, r"registry\.kind is static"),
        ({"config": CONFIG, "pools": {"drafters": {"eagel": {}}}}, r"pools\.drafters names \['eagel'\]"),
        ({"config": CONFIG, "pools": {"verifier": {"min_replicas": 0}}}, r"pools\.verifier\.min_replicas"),
        ({"config": {"verifyer": {}}}, r"config\.verifyer: .*did you mean 'verifier'"),
        ({"config": CONFIG, "pools": {"verifier": {"cpus": "many"}}}, r"pools\.verifier\.cpus: .*'many'"),
        ({"config": {"security": {"public_tls": {"ca": "x"}}}}, r"security\.public_tls"),
        (
            {"config": {"verifier": {"tensor_parallel": 2}}, "pools": {"verifier": {"cpus": 0}}},
            r"pools\.verifier must have cpus or gpus",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(args: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        build(args)
    assert "\n" not in str(caught.value)
