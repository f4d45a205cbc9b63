"""What monitors select is there; rules and dashboards are those of deploy/."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.manifests.k8s.rendering import (
    NAME,
    NAMESPACE,
    SETS,
    Object,
    objects,
    ray_cluster,
    ray_service,
    selects,
    templates,
)
from tests.manifests.k8s.tools import ROOT

MONITORED = [name for name in SETS if name in ("everything", "gke", "eks", "on-prem", "plain-gpu")]


def head_service(name: str) -> Object:
    """The service that KubeRay makes for the head: its labels, its ports those of the head's container."""
    head = ray_cluster(name)["headGroupSpec"]["template"]["spec"]["containers"][0]
    ours = ray_service(name)["metadata"]["name"]
    labels = {"ray.io/originated-from-cr-name": ours, "ray.io/originated-from-crd": "RayService"}
    return {
        "labels": labels | {"ray.io/node-type": "head"},
        "ports": {port["name"]: port["containerPort"] for port in head["ports"]},
    }


@pytest.mark.parametrize("name", SETS)
def test_monitoring_is_there_where_it_is_switched_on(name: str) -> None:
    assert bool(objects(name, "PodMonitor")) is (name in MONITORED)


@pytest.mark.parametrize("name", MONITORED)
def test_pod_monitors_select_pods_that_have_the_port(name: str) -> None:
    for found in objects(name, "PodMonitor"):
        chosen = [item for item in templates(name) if selects(found["spec"]["selector"], item.labels)]
        assert chosen, found["metadata"]["name"]
        for endpoint in found["spec"]["podMetricsEndpoints"]:
            for item in chosen:
                assert endpoint["port"] in item.ports, f"{found['metadata']['name']}: {item.where}"


@pytest.mark.parametrize("name", [name for name in MONITORED if not name.startswith("plain-")])
def test_the_service_monitor_selects_the_heads_service_and_its_ports(name: str) -> None:
    (found,) = objects(name, "ServiceMonitor")
    service = head_service(name)
    assert selects(found["spec"]["selector"], service["labels"])
    assert {endpoint["port"] for endpoint in found["spec"]["endpoints"]} <= service["ports"].keys()


@pytest.mark.parametrize("name", [name for name in MONITORED if not name.startswith("plain-")])
def test_every_ray_node_is_read_once(name: str) -> None:
    (workers,) = objects(name, "PodMonitor")
    chosen = {item.ray_group for item in templates(name) if selects(workers["spec"]["selector"], item.labels)}
    assert chosen == {group["groupName"] for group in ray_cluster(name)["workerGroupSpecs"]}


@pytest.mark.parametrize("name", [name for name in MONITORED if not name.startswith("plain-")])
def test_our_metrics_are_found_through_a_gateway(name: str) -> None:
    (found,) = objects(name, "ScrapeConfig")
    (discovery,) = found["spec"]["httpSDConfigs"]
    service = ray_service(name)["spec"]["serveService"]["metadata"]["name"]
    assert service == f"{NAME}-serve-svc"
    assert discovery["url"] == f"http://{service}.{NAMESPACE}.svc:8000/metrics/targets"


def test_without_ray_every_service_is_read() -> None:
    chosen = {
        item.labels["app.kubernetes.io/component"]
        for found in objects("plain-gpu", "PodMonitor")
        for item in templates("plain-gpu")
        if selects(found["spec"]["selector"], item.labels)
    }
    assert chosen == {"gateway", "verifier", "drafter-eagle", "drafter-prompt-lookup"}


@pytest.mark.parametrize("name", ["everything", "gke"])
def test_rules_are_those_of_deploy_word_for_word(name: str) -> None:
    groups = [group for found in objects(name, "PrometheusRule") for group in found["spec"]["groups"]]
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yaml"))
    wanted = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    assert sorted(groups, key=str) == sorted(wanted, key=str)
    assert wanted


@pytest.mark.parametrize("name", ["everything", "gke"])
def test_dashboards_are_those_of_deploy(name: str) -> None:
    maps = [
        found for found in objects(name, "ConfigMap") if "grafana_dashboard" in found["metadata"]["labels"]
    ]
    shown = {file: json.loads(text) for found in maps for file, text in found["data"].items()}
    files = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
    assert shown == {path.name: json.loads(path.read_text()) for path in files}
