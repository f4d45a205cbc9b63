"""Network policies let through what services need, and nothing else."""

from __future__ import annotations

import pytest

from tests.manifests.k8s.policies import Peer, allowed
from tests.manifests.k8s.rendering import PLAIN_SETS, RAY_SETS, objects, templates

STRANGER = Peer({"app": "stranger"})
ELSEWHERE = {"kubernetes.io/metadata.name": "elsewhere"}
FOREIGN = Peer({"app": "stranger"}, ELSEWHERE)
PROMETHEUS = Peer({"app.kubernetes.io/name": "prometheus"}, {"kubernetes.io/metadata.name": "monitoring"})
OPERATOR = Peer({"app.kubernetes.io/name": "kuberay-operator"}, {"kubernetes.io/metadata.name": "kuberay"})
DNS = Peer({"k8s-app": "kube-dns"}, {"kubernetes.io/metadata.name": "kube-system"})
INTERNET, METADATA_SERVER, NODE = (
    Peer(address="151.101.0.223"),
    Peer(address="169.254.169.254"),
    Peer(address="10.9.9.9"),
)
INGRESS = Peer({"app": "ingress"}, {"kubernetes.io/metadata.name": "ingress-nginx"})
API_SERVER = Peer(address="34.1.2.3")


def ray(name: str, group: str) -> Peer:
    """The pods of a Ray group."""
    (labels,) = [item.labels for item in templates(name) if item.ray_group == group]
    return Peer(labels)


def redis(name: str) -> Peer:
    (labels,) = [item.labels for item in templates(name) if "StatefulSet" in item.where]
    return Peer(labels)


def service(name: str, component: str) -> Peer:
    """The pods of a deployment, without Ray."""
    key = "app.kubernetes.io/component"
    (labels,) = [item.labels for item in templates(name) if item.labels.get(key) == component]
    return Peer(labels)


POLICED = [name for name in RAY_SETS if name != "nothing"]


@pytest.mark.parametrize("name", POLICED)
def test_every_pod_has_a_policy_for_both_ways(name: str) -> None:
    policies = objects(name, "NetworkPolicy")
    for item in templates(name):
        if "test" in item.where:
            continue
        assert not allowed(policies, STRANGER, Peer(item.labels), 22), item.where
        assert not allowed(policies, Peer(item.labels), INTERNET, 25), item.where


@pytest.mark.parametrize("name", POLICED)
@pytest.mark.parametrize("port", [6379, 8265, 10001, 20000, 44217, 50000])
def test_ray_nodes_reach_each_other_and_nobody_else_reaches_them(name: str, port: int) -> None:
    policies = objects(name, "NetworkPolicy")
    head, worker = ray(name, "headgroup"), ray(name, "verifiers")
    assert allowed(policies, worker, head, port)
    assert allowed(policies, head, worker, port)
    assert allowed(policies, ray(name, "drafters"), worker, port)
    for other in (STRANGER, FOREIGN, INGRESS):
        assert not allowed(policies, other, head, port)
        assert not allowed(policies, other, worker, port)


@pytest.mark.parametrize("name", ["defaults", "cpu-kind", "everything"])
def test_anybody_reaches_the_apis_where_clients_are_not_named(name: str) -> None:
    policies = objects(name, "NetworkPolicy")
    for port in (8000, 9000):
        for client in (STRANGER, FOREIGN, INTERNET, NODE):
            assert allowed(policies, client, ray(name, "drafters"), port)
    assert not allowed(policies, STRANGER, ray(name, "drafters"), 8080)


@pytest.mark.parametrize("name", ["gke", "on-prem"])
def test_only_named_clients_reach_the_apis_where_they_are(name: str) -> None:
    policies = objects(name, "NetworkPolicy")
    (test,) = [Peer(item.labels) for item in templates(name) if "Pod/" in item.where]
    for port in (8000, 9000):
        assert allowed(policies, INGRESS, ray(name, "drafters"), port)
        assert allowed(policies, test, ray(name, "drafters"), port)
        for client in (STRANGER, FOREIGN, INTERNET):
            assert not allowed(policies, client, ray(name, "drafters"), port)


@pytest.mark.parametrize("name", POLICED)
def test_the_operator_reaches_the_dashboard_and_the_proxy_only(name: str) -> None:
    policies, head = objects(name, "NetworkPolicy"), ray(name, "headgroup")
    assert [port for port in (6379, 8000, 8265, 10001, 52365) if allowed(policies, OPERATOR, head, port)] == [
        8000,
        8265,
    ]


@pytest.mark.parametrize("name", POLICED)
def test_prometheus_reaches_metrics_where_they_are_monitored(name: str) -> None:
    policies, worker = objects(name, "NetworkPolicy"), ray(name, "verifiers")
    monitored = bool(objects(name, "PodMonitor"))
    # 32768 to 60999 is where Linux takes free ports from: our replicas' pages
    for port in (8080, 32768, 60999):
        assert allowed(policies, PROMETHEUS, worker, port) is monitored
    for port in (44217, 44227):
        assert allowed(policies, PROMETHEUS, ray(name, "headgroup"), port) is monitored
    for port in (6379, 8265, 10001, 61000):
        assert not allowed(policies, PROMETHEUS, ray(name, "headgroup"), port)
    if monitored:
        assert allowed(policies, PROMETHEUS, worker, 8000), "the list of pages"


@pytest.mark.parametrize("name", POLICED)
def test_ray_nodes_go_out_for_names_redis_and_models_only(name: str) -> None:
    policies, worker = objects(name, "NetworkPolicy"), ray(name, "verifiers")
    assert allowed(policies, worker, DNS, 53, "UDP")
    assert allowed(policies, worker, DNS, 53)
    assert not allowed(policies, worker, DNS, 443)
    assert not allowed(policies, worker, METADATA_SERVER, 80)
    assert not allowed(policies, worker, NODE, 10250)
    downloads = name in ("defaults", "cpu-kind", "everything")
    assert allowed(policies, worker, INTERNET, 443) is downloads
    assert not allowed(policies, worker, NODE, 443)
    assert not allowed(policies, worker, METADATA_SERVER, 443)


@pytest.mark.parametrize("name", POLICED)
def test_only_the_head_reaches_the_kubernetes_api_and_only_for_its_autoscaler(name: str) -> None:
    policies = objects(name, "NetworkPolicy")
    scales = name not in ("cpu-kind", "on-prem")
    assert allowed(policies, ray(name, "headgroup"), API_SERVER, 6443) is scales
    assert not allowed(policies, ray(name, "verifiers"), API_SERVER, 6443)


@pytest.mark.parametrize("name", ["defaults", "cpu-kind", "gke", "everything"])
def test_only_ray_nodes_reach_redis_and_it_goes_nowhere(name: str) -> None:
    policies = objects(name, "NetworkPolicy")
    for group in ("headgroup", "drafters", "verifiers"):
        assert allowed(policies, ray(name, group), redis(name), 6379)
    for other in (STRANGER, FOREIGN, PROMETHEUS, INGRESS):
        assert not allowed(policies, other, redis(name), 6379)
    assert not allowed(policies, ray(name, "headgroup"), redis(name), 22)
    for target, port in ((INTERNET, 443), (DNS, 53), (ray(name, "headgroup"), 6379)):
        assert not allowed(policies, redis(name), target, port)


def test_an_external_redis_is_reached_at_its_address_and_port() -> None:
    policies, worker = objects("eks", "NetworkPolicy"), ray("eks", "verifiers")
    assert allowed(policies, worker, Peer(address="10.0.3.4"), 6379)
    assert not allowed(policies, worker, Peer(address="10.1.3.4"), 6379)
    assert not allowed(policies, worker, Peer(address="10.0.3.4"), 5432)
    sentinel = Peer({"app": "sentinel"}, {"kubernetes.io/metadata.name": "redis"})
    assert allowed(objects("on-prem", "NetworkPolicy"), ray("on-prem", "verifiers"), sentinel, 26379)


COMPONENTS = ("gateway", "verifier", "drafter-eagle", "drafter-prompt-lookup", "redis")
WAYS = {
    ("gateway", "verifier", 9100),
    ("gateway", "redis", 6379),
    ("verifier", "drafter-eagle", 9200),
    ("verifier", "drafter-prompt-lookup", 9200),
    ("verifier", "redis", 6379),
    ("drafter-eagle", "redis", 6379),
    ("drafter-prompt-lookup", "redis", 6379),
}
"""Who calls whom, without Ray."""


@pytest.mark.parametrize("name", [f"plain-{name}" for name in PLAIN_SETS])
def test_without_ray_each_service_reaches_exactly_whom_it_calls(name: str) -> None:
    policies = objects(name, "NetworkPolicy")
    ports = (6379, 8000, 9000, 9100, 9200, 9400)
    found = {
        (source, target, port)
        for source in COMPONENTS
        for target in COMPONENTS
        for port in ports
        if source != target and allowed(policies, service(name, source), service(name, target), port)
    }
    assert found == WAYS


@pytest.mark.parametrize("name", [f"plain-{name}" for name in PLAIN_SETS])
def test_without_ray_only_the_apis_are_open_to_others(name: str) -> None:
    policies = objects(name, "NetworkPolicy")
    for other in (STRANGER, FOREIGN, INGRESS, INTERNET):
        open_to = {
            (component, port)
            for component in COMPONENTS
            for port in (22, 6379, 8000, 9000, 9100, 9200, 9400)
            if allowed(policies, other, service(name, component), port)
        }
        assert open_to == {("gateway", 8000), ("gateway", 9000)}


@pytest.mark.parametrize("component", ["verifier", "drafter-eagle", "drafter-prompt-lookup"])
def test_without_ray_prometheus_reaches_metrics_where_they_are_monitored(component: str) -> None:
    for name in PLAIN_SETS:
        policies = objects(f"plain-{name}", "NetworkPolicy")
        monitored = bool(objects(f"plain-{name}", "PodMonitor"))
        target = service(f"plain-{name}", component)
        assert allowed(policies, PROMETHEUS, target, 9400) is monitored
        assert not allowed(policies, PROMETHEUS, target, target_port(component))


def target_port(component: str) -> int:
    """Where its gRPC server listens."""
    return 9100 if component == "verifier" else 9200
