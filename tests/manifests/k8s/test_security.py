"""Security rules, each over every pod of every set."""

from __future__ import annotations

import base64
import re

import pytest

from tests.manifests.k8s.rendering import (
    RAY_SETS,
    SETS,
    Object,
    objects,
    ray_cluster,
    ray_service,
    serve_config,
    templates,
    text_of,
)

POD_SETTINGS = ("hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace")
SAID = re.compile(r"(pass|password|token|secret)[= ]+[^\"$%/ -]", re.IGNORECASE)
"""A secret as an option or a word of a command, not a variable or a file."""
SECRET = re.compile(r"password|token|secret|api_?key|credential", re.IGNORECASE)


def containers(name: str) -> list[tuple[str, Object]]:
    """Those of all pods of a set, that which KubeRay adds too: (where, container)."""
    found = [(item.where, container) for item in templates(name) for container in item.containers]
    for _ in objects(name, "RayService"):
        if options := ray_cluster(name).get("autoscalerOptions"):
            image = ray_cluster(name)["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
            found.append((f"{name}: autoscaler", options | {"name": "autoscaler", "image": image}))
    return found


every_set = pytest.mark.parametrize("name", SETS)


@every_set
def test_nothing_runs_as_root(name: str) -> None:
    for item in templates(name):
        context = item.spec["securityContext"]
        assert context["runAsNonRoot"] is True, item.where
        assert context["runAsUser"] > 0, item.where
        assert context["runAsGroup"] > 0, item.where
    for where, container in containers(name):
        assert container["securityContext"]["runAsNonRoot"] is True, where
        assert container["securityContext"].get("runAsUser", 1) > 0, where


@every_set
def test_nothing_may_gain_privileges(name: str) -> None:
    for where, container in containers(name):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False, where
        assert not container["securityContext"].get("privileged"), where


@every_set
def test_all_capabilities_are_dropped_and_none_added(name: str) -> None:
    for where, container in containers(name):
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, where


@every_set
def test_system_calls_are_filtered(name: str) -> None:
    for item in templates(name):
        assert item.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, item.where
    for where, container in containers(name):
        assert container["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where


@every_set
def test_root_file_systems_are_read_only_and_what_is_written_has_a_place(name: str) -> None:
    for where, container in containers(name):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, where
        home = {entry["name"]: entry.get("value") for entry in container.get("env", ())}.get("HOME")
        written = {
            mount["mountPath"] for mount in container.get("volumeMounts", ()) if not mount.get("readOnly")
        }
        if "redis" in where:
            assert written == {"/data", "/run/redis"}
        elif "test" not in where:
            assert home in written, where


@every_set
def test_nothing_of_the_host_is_shared(name: str) -> None:
    for item in templates(name):
        assert not [setting for setting in POD_SETTINGS if item.spec.get(setting)], item.where
        assert not [volume for volume in item.spec.get("volumes", ()) if "hostPath" in volume], item.where
    for where, container in containers(name):
        assert not [port for port in container.get("ports", ()) if "hostPort" in port], where


@every_set
def test_no_pod_is_handed_a_token_of_the_kubernetes_api(name: str) -> None:
    for item in templates(name):
        assert item.spec["automountServiceAccountToken"] is False, item.where
    for account in objects(name, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", RAY_SETS)
def test_only_rays_autoscaler_mounts_one_and_only_on_the_head(name: str) -> None:
    cluster = ray_cluster(name)
    holders = [
        item.ray_group
        for item in templates(name)
        for volume in item.spec.get("volumes", ())
        if "serviceAccountToken" in str(volume)
    ]
    assert holders == (["headgroup"] if cluster["enableInTreeAutoscaling"] else [])
    for where, container in containers(name):
        mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", ())}
        if where.endswith("autoscaler"):
            assert mounts["api-token"] == "/var/run/secrets/kubernetes.io/serviceaccount"
        else:
            assert "api-token" not in mounts, where


@every_set
def test_services_have_no_rights_of_their_own(name: str) -> None:
    assert objects(name, "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding") == []


@every_set
def test_every_container_has_requests_and_a_memory_limit(name: str) -> None:
    for where, container in containers(name):
        resources = container["resources"]
        assert resources["requests"].keys() >= {"cpu", "memory"}, where
        assert resources["limits"].keys() >= {"memory"}, where


@every_set
def test_images_have_fixed_tags(name: str) -> None:
    for where, container in containers(name):
        repository, _, tag = container["image"].rpartition(":")
        assert repository, f"{where}: {container['image']} has no tag"
        assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+(-\w+)?|[0-9a-f]{64}", tag), where


@every_set
def test_no_secret_stands_in_arguments_or_environment(name: str) -> None:
    for where, container in containers(name):
        for entry in container.get("env", ()):
            assert not (SECRET.search(entry["name"]) and entry.get("value")), f"{where}: {entry['name']}"
        for word in [*container.get("command", ()), *container.get("args", ())]:
            assert not SAID.search(word), f"{where}: {word}"


@pytest.mark.parametrize("name", RAY_SETS)
def test_what_the_chart_generates_stands_in_its_secret_alone(name: str) -> None:
    made = [value for found in objects(name, "Secret") for value in found["data"].values()]
    for value in made:
        clear = base64.b64decode(value).decode()
        assert len(clear) >= 40
        assert text_of(name).count(value) == 1
        assert clear not in text_of(name)
    assert bool(made) == (name not in ("nothing",))


@pytest.mark.parametrize("name", RAY_SETS)
def test_the_serve_configuration_holds_no_password(name: str) -> None:
    config = serve_config(name)["applications"][0]["args"]["config"]
    url = config.get("store", {}).get("url", "")
    assert not re.search(r"://[^/@]*:[^/@]*@", url)
    assert ("password_file=" in url) == bool(url)
    options = ray_cluster(name).get("gcsFaultToleranceOptions", {})
    assert "value" not in options.get("redisPassword", {})


@pytest.mark.parametrize("name", RAY_SETS)
def test_files_of_secrets_that_the_configuration_names_are_mounted(name: str) -> None:
    config = serve_config(name)["applications"][0]["args"]["config"]
    named = re.findall(r"/etc/outrider/[\w./-]+", str(config))
    for item in templates(name):
        if not item.ray_group:
            continue
        (container,) = item.containers
        folders = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in item.spec["volumes"]}
        for path in named:
            folder, _, file = path.rpartition("/")
            secret = volumes[folders[folder]]["secret"]
            paths = [entry["path"] for entry in secret.get("items", ())] or ["tls.crt", "tls.key", "ca.crt"]
            assert file in paths, f"{item.where}: {path}"
            assert secret["defaultMode"] == 0o440
    assert bool(named) == (name != "nothing")


@every_set
def test_secrets_are_mounted_as_folders_so_that_changes_arrive(name: str) -> None:
    for item in templates(name):
        secret = {volume["name"] for volume in item.spec.get("volumes", ()) if "secret" in volume}
        for container in item.containers:
            for mount in container.get("volumeMounts", ()):
                assert not (mount["name"] in secret and "subPath" in mount), item.where
                assert not (mount["name"] in secret and not mount.get("readOnly")), item.where


@pytest.mark.parametrize("name", [name for name in RAY_SETS if name != "nothing"])
def test_rays_own_token_is_asked_for(name: str) -> None:
    assert ray_cluster(name)["authOptions"]["mode"] == "token"


@pytest.mark.parametrize("name", ["gke", "eks", "on-prem"])
def test_sets_for_production_ask_for_keys_and_protect_their_links(name: str) -> None:
    security = serve_config(name)["applications"][0]["args"]["config"]["security"]
    assert security.keys() == {"cluster_token_file", "api_keys_file", "internal_tls"}
    assert ray_service(name)["spec"]["serveService"]["spec"]["type"] == "ClusterIP"
