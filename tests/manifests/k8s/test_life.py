"""Starting, stopping, being moved: probes, grace periods, budgets, autoscalers."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from outrider.config import OutriderConfig
from outrider.rayserve.arguments import ServeArguments
from outrider.rayserve.options import CLOSE_S
from outrider.telemetry import names
from tests.manifests.deploy.promql import known_series, problems
from tests.manifests.k8s.rendering import (
    PLAIN_SETS,
    RAY_SETS,
    SETS,
    objects,
    one,
    ray_cluster,
    ray_service,
    selects,
    serve_config,
    templates,
)
from tests.manifests.k8s.tools import ROOT

PLAIN = [f"plain-{name}" for name in PLAIN_SETS]


def arguments(name: str) -> ServeArguments:
    return ServeArguments.model_validate(serve_config(name)["applications"][0]["args"])


def config_of(name: str) -> OutriderConfig:
    """The configuration of a set without Ray."""
    (found,) = [m for m in objects(name, "ConfigMap") if "cluster.yaml" in m["data"]]
    return OutriderConfig.model_validate(yaml.safe_load(found["data"]["cluster.yaml"]))


@pytest.mark.parametrize("name", SETS)
def test_every_container_is_probed_at_a_port_that_it_opens(name: str) -> None:
    for item in templates(name):
        if "Pod/" in item.where:
            continue
        (container,) = item.containers
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container[kind]
            if "exec" in probe:
                continue
            port = (probe.get("httpGet") or probe["grpc"])["port"]
            # 52365: the agent of each Ray node, which Ray itself opens
            assert port in (*item.ports.values(), *item.ports, 52365), f"{item.where}: {kind}"


@pytest.mark.parametrize("name", RAY_SETS)
def test_a_worker_has_time_to_drain_before_it_is_killed(name: str) -> None:
    needed = arguments(name).config.verifier.drain_s + CLOSE_S
    for item in templates(name):
        if item.ray_group in ("", "headgroup"):
            continue
        (container,) = item.containers
        command = " ".join(container["lifecycle"]["preStop"]["exec"]["command"])
        drained = int(command.split("sleep ")[1])
        assert f"--deadline-remaining-seconds {drained} " in command
        assert drained >= needed, item.where
        assert item.spec["terminationGracePeriodSeconds"] > drained, item.where


@pytest.mark.parametrize("name", RAY_SETS)
def test_an_old_cluster_stays_until_its_longest_stream_has_ended(name: str) -> None:
    delay = ray_service(name)["spec"]["rayClusterDeletionDelaySeconds"]
    assert delay > arguments(name).config.gateway.request_timeout_s


@pytest.mark.parametrize("name", PLAIN)
def test_services_have_time_to_drain_before_they_are_killed(name: str) -> None:
    # gateways give answers 5 s, all need some seconds to close
    needed = {"outrider-verifier": config_of(name).verifier.drain_s + 5, "outrider-gateway": 5 + 5 + 5}
    for found in objects(name, "Deployment"):
        grace = found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace > needed.get(found["metadata"]["name"], 10), found["metadata"]["name"]


@pytest.mark.parametrize("name", PLAIN)
def test_what_services_open_is_what_their_pods_say(name: str) -> None:
    config = config_of(name)
    expected: dict[str, dict[str, Any]] = {
        "outrider-gateway": {"http": config.gateway.http_port, "grpc": config.gateway.grpc_port},
        "outrider-verifier": {"grpc": config.verifier.port, "metrics": config.verifier.metrics_port},
    }
    for drafter, own in config.drafters.items():
        expected[f"outrider-drafter-{drafter.replace('_', '-')}"] = {
            "grpc": own.port,
            "metrics": own.metrics_port,
        }
    for item in templates(name):
        deployment = item.where.rpartition("/")[2]
        if deployment in expected:
            assert item.ports == expected.pop(deployment)
    assert not expected


@pytest.mark.parametrize("name", SETS)
def test_budgets_and_services_select_pods(name: str) -> None:
    for found in objects(name, "PodDisruptionBudget"):
        chosen = [item for item in templates(name) if selects(found["spec"]["selector"], item.labels)]
        assert len(chosen) == 1, found["metadata"]["name"]
    for found in objects(name, "Service"):
        selector = {"matchLabels": found["spec"]["selector"]}
        (chosen_one,) = [item for item in templates(name) if selects(selector, item.labels)]
        for port in found["spec"]["ports"]:
            assert port["targetPort"] in chosen_one.ports


@pytest.mark.parametrize("name", RAY_SETS)
def test_budgets_of_ray_nodes_are_numbers_that_leave_room(name: str) -> None:
    """`maxUnavailable` needs an owner with a scale subresource, which a RayCluster has not."""
    sizes = {group["groupName"]: group["minReplicas"] for group in ray_cluster(name)["workerGroupSpecs"]}
    budgets = {
        found["spec"]["selector"]["matchLabels"].get("ray.io/group", "head"): found["spec"]
        for found in objects(name, "PodDisruptionBudget")
    }
    protected = "gcsFaultToleranceOptions" not in ray_cluster(name)
    assert ("head" in budgets) is protected
    budgets.pop("head", None)
    assert budgets.keys() == {group for group, size in sizes.items() if size > 1}
    for group, spec in budgets.items():
        assert (spec["minAvailable"], "maxUnavailable" in spec) == (sizes[group] - 1, False)


@pytest.mark.parametrize("name", RAY_SETS)
def test_rays_state_is_kept_wherever_there_is_a_redis(name: str) -> None:
    options = ray_cluster(name).get("gcsFaultToleranceOptions")
    if name == "nothing":
        assert options is None
        return
    assert options["redisPassword"]["valueFrom"]["secretKeyRef"]["name"]
    url = serve_config(name)["applications"][0]["args"]["config"]["store"]["url"]
    assert options["redisAddress"] != url.partition("?")[0]
    if objects(name, "StatefulSet"):  # sessions and Ray's state share the server, not the database
        assert (options["redisAddress"], "/1?" in url) == (f"redis://{_redis(name)}:6379", True)


def _redis(name: str) -> str:
    return str(one(name, "StatefulSet")["metadata"]["name"])


@pytest.mark.parametrize("name", RAY_SETS)
def test_replicas_fit_the_nodes_that_they_select(name: str) -> None:
    pools, config = arguments(name).pools, arguments(name).config
    nodes = {}
    for group in ray_cluster(name)["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        size = float(limits["cpu"]), float(limits.get("nvidia.com/gpu", 0))
        nodes[group["groupName"]] = (group.get("labels", {}), *size, group["maxReplicas"])
    ranks = config.verifier.tensor_parallel
    wanted = [(pools.gateway, 1), (pools.verifier, ranks), *((pool, 1) for pool in pools.drafters.values())]
    for pool, parts in wanted:
        fitting = [
            (cpus, gpus, most)
            for labels, cpus, gpus, most in nodes.values()
            if pool.labels.items() <= labels.items()
            and cpus >= pool.cpus * parts
            and gpus >= pool.gpus * parts
        ]
        assert fitting, f"{name}: no node holds {pool}"
        room = sum(
            most * min(cpus // (pool.cpus * parts), gpus // (pool.gpus * parts) if pool.gpus else 1e9)
            for cpus, gpus, most in fitting
        )
        assert room >= pool.max_replicas, f"{name}: there will never be room for {pool}"


@pytest.mark.parametrize("name", RAY_SETS)
def test_all_replicas_of_the_smallest_deployment_fit_the_smallest_cluster(name: str) -> None:
    """With every pool at its least size nothing waits for a node where none can come."""
    pools, config = arguments(name).pools, arguments(name).config
    room: dict[str, list[float]] = {}
    for group in ray_cluster(name)["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        count = group["maxReplicas"] if ray_cluster(name)["enableInTreeAutoscaling"] else group["minReplicas"]
        key = str(sorted(group.get("labels", {}).items()))
        room.setdefault(key, [0.0, 0.0])
        room[key][0] += count * float(limits["cpu"])
        room[key][1] += count * float(limits.get("nvidia.com/gpu", 0))
    ranks = config.verifier.tensor_parallel
    for pool, parts in [
        (pools.gateway, 1),
        (pools.verifier, ranks),
        *((p, 1) for p in pools.drafters.values()),
    ]:
        left = room[str(sorted(pool.labels.items()))]
        left[0] -= pool.min_replicas * parts * pool.cpus
        left[1] -= pool.min_replicas * parts * pool.gpus
    assert all(amount >= 0 for left in room.values() for amount in left), room


def test_the_head_runs_no_replicas_and_takes_no_traffic() -> None:
    for name in RAY_SETS:
        assert ray_cluster(name)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        assert ray_service(name)["spec"]["excludeHeadPodFromServeSvc"] is True


@pytest.mark.parametrize("name", RAY_SETS)
def test_rays_processes_are_set_up_as_on_a_machine(name: str) -> None:
    """docs/rayserve.md says which variables, and what for."""
    wanted = ("RAY_worker_niceness", "RAY_USAGE_STATS_ENABLED", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S")
    for item in templates(name):
        if item.ray_group:
            (container,) = item.containers
            given = {variable["name"]: variable.get("value") for variable in container["env"]}
            assert {key: given.get(key) for key in wanted} == dict(zip(wanted, ("0", "0", "60"), strict=True))


def test_autoscalers_ask_for_metrics_that_the_adapter_makes_of_ours() -> None:
    path = ROOT / "k8s" / "plain" / "components" / "autoscaling" / "adapter-rules.yaml"
    rules = yaml.safe_load(path.read_text())["rules"]
    made = {
        kind: {rule["name"]["as"]: rule["metricsQuery"] for rule in rules[kind]}
        for kind in ("custom", "external")
    }
    asked: dict[str, set[str]] = {"custom": set(), "external": set()}
    for found in objects("plain-gpu", "HorizontalPodAutoscaler"):
        target = found["spec"]["scaleTargetRef"]
        one("plain-gpu", target["kind"], ending=target["name"])
        for metric in found["spec"]["metrics"]:
            if metric["type"] == "Pods":
                asked["custom"].add(metric["pods"]["metric"]["name"])
            elif metric["type"] == "External":
                asked["external"].add(metric["external"]["metric"]["name"])
                labels = metric["external"]["metric"]["selector"]["matchLabels"]
                assert labels["drafter"] in config_of("plain-gpu").drafters
    assert asked == {kind: set(found) for kind, found in made.items()}
    known = known_series()
    for query in (*made["custom"].values(), *made["external"].values()):
        filled = query.replace("{<<.LabelMatchers>>}", "").replace("<<.GroupBy>>", names.LABEL_MODEL)
        assert problems(filled, known) == []


def test_an_applied_deployment_does_not_undo_its_autoscaler() -> None:
    scaled = {
        found["spec"]["scaleTargetRef"]["name"] for found in objects("plain-gpu", "HorizontalPodAutoscaler")
    }
    fixed = {
        found["metadata"]["name"]
        for found in objects("plain-gpu", "Deployment")
        if "replicas" in found["spec"]
    }
    assert (scaled & fixed, len(scaled | fixed)) == (set(), len(objects("plain-gpu", "Deployment")))
