"""Every set of manifests renders, and is what Kubernetes, KubeRay, Ray Serve and Outrider take."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from outrider.config import load_config
from outrider.rayserve.serve_file import parse_serve_text
from tests.manifests.k8s import kubernetes_schema
from tests.manifests.k8s.rendering import (
    EVERYTHING,
    PLAIN_SETS,
    RAY_SETS,
    SETS,
    VALUE_SETS,
    Object,
    objects,
    one,
    ray_cluster,
    ray_service,
    serve_config,
    templates,
)
from tests.manifests.k8s.tools import CHART, ROOT, run

OTHERS = ("RayService", "PodMonitor", "ServiceMonitor", "ScrapeConfig", "PrometheusRule")
"""Kinds that are not Kubernetes' own."""
SCHEMAS = Path(__file__).parent / "schemas"


@functools.cache
def schema(name: str) -> Any:
    """A validator."""
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text()))


@pytest.mark.parametrize("name", VALUE_SETS)
def test_helm_finds_nothing_to_complain_of(name: str) -> None:
    run("helm", "lint", "--strict", CHART, "--values", CHART / f"values-{name}.yaml")


def test_helm_finds_nothing_to_complain_of_with_everything_switched_on() -> None:
    run("helm", "lint", "--strict", CHART, *EVERYTHING)


@pytest.mark.parametrize("name", SETS)
def test_kubernetes_takes_its_own_kinds(name: str) -> None:
    for found in objects(name):
        if found["kind"] not in OTHERS:
            kubernetes_schema.check(found)


@pytest.mark.parametrize("name", RAY_SETS)
def test_kubernetes_takes_what_a_ray_service_holds_of_its_kinds(name: str) -> None:
    cluster = ray_cluster(name)
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
        kubernetes_schema.check(template | {"template": group["template"]})
    service = {"apiVersion": "v1", "kind": "Service"} | ray_service(name)["spec"]["serveService"]
    kubernetes_schema.check(service)
    if options := cluster.get("autoscalerOptions"):
        container = {key: options[key] for key in ("env", "volumeMounts", "securityContext", "resources")}
        spec = {"containers": [{"name": "autoscaler", "image": "x", **container}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_schema.check(pod)


@pytest.mark.parametrize("name", RAY_SETS)
def test_kuberay_takes_the_ray_service(name: str) -> None:
    schema("rayservice").validate(ray_service(name))


def test_a_field_that_kubernetes_does_not_know_is_seen() -> None:
    changed = one("defaults", "StatefulSet")
    container = changed["spec"]["template"]["spec"]["containers"][0] | {"readynessProbe": {}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container]}}
    with pytest.raises(jsonschema.ValidationError, match="readynessProbe"):
        kubernetes_schema.check(pod)


@pytest.mark.parametrize("path", [("spec", "rayClusterConfig", "workerGroupSpecs", 0), ("spec",)])
def test_a_field_that_kuberay_does_not_know_is_seen(path: tuple[str | int, ...]) -> None:
    changed = json.loads(json.dumps(ray_service("defaults")))
    place = changed
    for step in path:
        place = place[step]
    place["minReplica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="minReplica"):
        schema("rayservice").validate(changed)


@pytest.mark.parametrize("name", SETS)
def test_the_prometheus_operator_takes_its_kinds(name: str) -> None:
    for found in objects(name, *OTHERS[1:]):
        schema("monitoring").validate(found)


@pytest.mark.parametrize("name", RAY_SETS)
def test_kuberays_own_rules_for_ray_clusters_hold(name: str) -> None:
    """What KubeRay's validation refuses although it fits the schema."""
    cluster = ray_cluster(name)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        sized = {"num-cpus", "num-gpus", "memory", "resources"} & group["rayStartParams"].keys()
        assert not (sized and group.get("resources")), "resources stand in two places"
        assert "labels" not in group["rayStartParams"]
        assert "restartPolicy" not in group["template"]["spec"], "autoscaler v2 wants it left out"
        environment = {entry["name"] for entry in group["template"]["spec"]["containers"][0]["env"]}
        assert not environment & {"RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME"}
        assert not environment & {"RAY_enable_autoscaler_v2", "RAY_CLUSTER_NAME"}
    assert not {"redis-password", "redis-username"} & cluster["headGroupSpec"]["rayStartParams"].keys()
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["maxReplicas"]
        assert not ("idleTimeoutSeconds" in group and not cluster["enableInTreeAutoscaling"])
    names = [group["groupName"] for group in cluster["workerGroupSpecs"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", RAY_SETS)
def test_ray_serve_and_outrider_take_the_serve_configuration(name: str) -> None:
    text = ray_service(name)["spec"]["serveConfigV2"]
    ServeDeploySchema.model_validate(yaml.safe_load(text))
    found = parse_serve_text(text, name)
    assert [application.name for application in found.ours] == ["outrider"]
    assert found.has_grpc


@pytest.mark.parametrize("name", RAY_SETS)
def test_the_serve_configuration_is_of_the_ports_that_pods_open(name: str) -> None:
    config, service = serve_config(name), ray_service(name)["spec"]["serveService"]
    expected = {"serve": config["http_options"]["port"], "serve-grpc": config["grpc_options"]["port"]}
    assert config["http_options"]["host"] == "0.0.0.0"  # nodes are apart
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == expected
    for template in templates(name):
        if template.ray_group:
            assert expected.items() <= template.ports.items()


@pytest.mark.parametrize("name", PLAIN_SETS)
def test_the_configuration_without_ray_is_one_that_services_take(name: str, tmp_path: Path) -> None:
    found = one(f"plain-{name}", "ConfigMap", ending=_generated(f"plain-{name}"))
    path = tmp_path / "cluster.yaml"
    path.write_text(found["data"]["cluster.yaml"])
    config = load_config(path)
    assert (config.registry.kind, config.store.kind) == ("redis", "redis")
    for drafter in config.drafters:  # each has a deployment, and is started by its name
        deployment = one(f"plain-{name}", "Deployment", ending=f"drafter-{drafter.replace('_', '-')}")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["args"][:2] == ["drafter", drafter]
        load_config(path, [arg.removeprefix("--set=") for arg in container["args"] if "--set=" in arg])


def _generated(name: str) -> str:
    (found,) = [m["metadata"]["name"] for m in objects(name, "ConfigMap") if "cluster.yaml" in m["data"]]
    return str(found)


@pytest.mark.parametrize("name", SETS)
def test_no_two_objects_have_one_name(name: str) -> None:
    names = [(found["kind"], found["metadata"]["name"]) for found in objects(name)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", SETS)
def test_objects_say_what_they_belong_to(name: str) -> None:
    for found in objects(name):
        if name.startswith("plain-") and "part-of" not in str(found["metadata"].get("labels")):
            assert found["kind"] in ("PodMonitor", "NetworkPolicy", "HorizontalPodAutoscaler"), found["kind"]
            continue
        labels = found["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "outrider"


def references(found: Object) -> set[tuple[str, str]]:
    """Objects that pods of a set name: (kind, name)."""
    wanted = set()
    for volume in found.get("volumes", ()):
        if "configMap" in volume:
            wanted.add(("ConfigMap", volume["configMap"]["name"]))
        if "secret" in volume:
            wanted.add(("Secret", volume["secret"]["secretName"]))
    if "serviceAccountName" in found:
        wanted.add(("ServiceAccount", found["serviceAccountName"]))
    return wanted


BROUGHT = {"outrider-secrets", "outrider-keys", "outrider-internal-tls", "outrider-redis", "keys", "tls"}
"""Secrets that whoever installs it makes, as docs/kubernetes.md says."""


@pytest.mark.parametrize("name", SETS)
def test_pods_name_only_what_is_there(name: str) -> None:
    there = {(found["kind"], found["metadata"]["name"]) for found in objects(name)}
    there |= {("Secret", secret) for secret in BROUGHT}
    for template in templates(name):
        assert references(template.spec) <= there, template.where
        volumes = {volume["name"] for volume in template.spec.get("volumes", ())} | template.claims
        for container in template.containers:
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted <= volumes, template.where


def test_the_documentation_names_every_secret_to_be_brought() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    assert [name for name in BROUGHT - {"keys", "tls"} if name not in text] == []
