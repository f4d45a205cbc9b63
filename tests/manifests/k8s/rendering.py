"""Every set of manifests that this project offers, rendered once, and ways to look into them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.manifests.k8s.tools import CHART, ROOT, run, template

Object = dict[str, Any]

EVERYTHING = (
    "--set=monitoring.enabled=true,ingress.enabled=true,ingress.host=a.example,ingress.grpc.enabled=true",
    "--set=ingress.grpc.host=b.example,workerGroups.verifiers.minReplicas=2,upgrade.type=None",
    "--set=security.apiKeys.existingSecret=keys,security.internalTls.existingSecret=tls",
    "--set=config.telemetry.otlp_endpoint=http://collector:4317,models.existingClaim=models",
)
NOTHING = (
    "--set=redis.inCluster.enabled=false,security.clusterToken.enabled=false,networkPolicy.enabled=false",
    "--set=autoscaler.enabled=false,autoscaling.enabled=false,rayAuth.enabled=false",
)
VALUE_SETS = sorted(path.stem.removeprefix("values-") for path in CHART.glob("values-*.yaml"))
"""Files of values in the chart."""
RAY_SETS = [*VALUE_SETS, "defaults", "everything", "nothing"]
"""With what the chart says by itself, and with all its switches on or off."""
PLAIN_SETS = sorted(path.name for path in (ROOT / "k8s" / "plain" / "overlays").iterdir())
SETS = [*RAY_SETS, *(f"plain-{name}" for name in PLAIN_SETS)]

RELEASE, NAMESPACE = "demo", "prod"
NAME = "demo-outrider"
"""Of the RayService of that release."""


@functools.cache
def text_of(name: str) -> str:
    """The manifests of a set."""
    if name.startswith("plain-"):
        return run("kubectl", "kustomize", ROOT / "k8s" / "plain" / "overlays" / name.removeprefix("plain-"))
    options: tuple[str, ...] = {"defaults": (), "everything": EVERYTHING, "nothing": NOTHING}.get(
        name, ("--values", str(CHART / f"values-{name}.yaml"))
    )
    return template(*options)


@functools.cache
def _objects(name: str) -> tuple[Object, ...]:
    return tuple(found for found in yaml.load_all(text_of(name), yaml.CSafeLoader) if found)


def objects(name: str, *kinds: str) -> list[Object]:
    """The objects of a set, or those of some kinds. Not to be changed."""
    return [found for found in _objects(name) if not kinds or found["kind"] in kinds]


def one(name: str, kind: str, *, ending: str = "") -> Object:
    """The one object of a kind (whose name ends so)."""
    (found,) = [item for item in objects(name, kind) if item["metadata"]["name"].endswith(ending)]
    return found


def ray_service(name: str) -> Object:
    """The one RayService of a set of the chart."""
    return one(name, "RayService")


def ray_cluster(name: str) -> Object:
    """What it says about the cluster."""
    cluster: Object = ray_service(name)["spec"]["rayClusterConfig"]
    return cluster


def serve_config(name: str) -> Object:
    """What Ray Serve is to deploy."""
    config: Object = yaml.load(ray_service(name)["spec"]["serveConfigV2"], yaml.CSafeLoader)
    return config


@dataclass(frozen=True)
class Template:
    """A pod template, and where it stands."""

    where: str
    labels: dict[str, str]  # as the pod has them, those of KubeRay too
    spec: Object
    ray_group: str = ""  # of a Ray node: `headgroup`, or the name of its worker group
    claims: frozenset[str] = frozenset()  # volumes that a StatefulSet makes for it

    @property
    def containers(self) -> list[Object]:
        """All of them."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        """Of all containers, by name."""
        ports = [port for container in self.containers for port in container.get("ports", ())]
        return {port["name"]: port["containerPort"] for port in ports}


def templates(name: str) -> list[Template]:
    """The templates of all pods of a set."""
    return [*_plain_templates(name), *_ray_templates(name)]


def _plain_templates(name: str) -> Iterator[Template]:
    for found in objects(name, "Deployment", "StatefulSet", "Pod"):
        template = found if found["kind"] == "Pod" else found["spec"]["template"]
        labels = template["metadata"]["labels"]
        claims = found["spec"].get("volumeClaimTemplates", ())
        yield Template(
            f"{name}: {found['kind']}/{found['metadata']['name']}",
            labels,
            template["spec"],
            claims=frozenset(claim["metadata"]["name"] for claim in claims),
        )


def _ray_templates(name: str) -> Iterator[Template]:
    for service in objects(name, "RayService"):
        cluster = service["spec"]["rayClusterConfig"]
        yield _ray_template(name, "headgroup", "head", cluster["headGroupSpec"])
        for group in cluster["workerGroupSpecs"]:
            yield _ray_template(name, group["groupName"], "worker", group)


def _ray_template(name: str, group: str, kind: str, spec: Object) -> Template:
    # What KubeRay adds to what it finds; other labels of its own are of no use to selectors.
    added = {"ray.io/node-type": kind, "ray.io/group": group, "ray.io/is-ray-node": "yes"}
    template = spec["template"]
    labels = {"app.kubernetes.io/name": "kuberay"} | template["metadata"]["labels"] | added
    return Template(f"{name}: Ray {group}", labels, template["spec"], group)


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector takes these labels. An empty one takes all."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", ()):
        there = labels.get(rule["key"])
        wanted = {"In": there in rule.get("values", ()), "Exists": there is not None}
        if not wanted[rule["operator"]]:
            return False
    return True
