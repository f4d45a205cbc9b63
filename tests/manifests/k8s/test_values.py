"""Values that make no sense are refused, in words that say which and why; the chart's files are current."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from tests.manifests.k8s.rendering import RAY_SETS, serve_config
from tests.manifests.k8s.tools import CHART, ROOT, attempt, template


def test_schema_rules_and_dashboards_are_made_from_their_sources() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "chart_files.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("values", "text"),
    [
        # by the schema: ours, and that of the configuration in it
        ("config.verifer.port=1", "additional properties 'verifer' not allowed"),
        ("config.verifier.draft_length=-1", "at '/config/verifier/draft_length': minimum: got -1, want 0"),
        ("config.verifier.batch_invariance=maybe", "'/config/verifier/batch_invariance'"),
        ("config.drafters.d.method=magic", "at '/config/drafters/d/method': value must be one of"),
        ("config.drafters.d.tree=bush", "at '/config/drafters/d/tree': 'bush' does not match pattern"),
        ("pools.verifier.max_replicas=0", "at '/pools/verifier/max_replicas': minimum: got 0, want 1"),
        ("pools.verifier.gpu=1", "additional properties 'gpu' not allowed"),
        ("autoscaling.settings.worth.margin=2", "at '/autoscaling/settings/worth/margin'"),
        ("workerGroup.a.minReplicas=1", "additional properties 'workerGroup' not allowed"),
        ("workerGroups.Big.minReplicas=1", "'Big' does not match pattern"),
        ("workerGroups.big.minReplicas=1", "missing properties 'maxReplicas', 'resources'"),
        (
            "workerGroups.verifiers.resources.limits.memory=lots",
            "'/workerGroups/verifiers/resources/limits/memory'",
        ),
        ("serve.httpPort=80", "at '/serve/httpPort': minimum: got 80, want 1,024"),
        ("serve.service.type=Public", "at '/serve/service/type': value must be one of"),
        ("upgrade.type=Rolling", "at '/upgrade/type': value must be one of"),
        ("upgrade.incremental.stepSizePercent=10", "at '/upgrade/incremental'"),
        ("image.digest=sha256:1", "at '/image/digest': 'sha256:1' does not match pattern"),
        (
            "redis.external.url=http://redis",
            "at '/redis/external/url': 'http://redis' does not match pattern",
        ),
        ("redis.external.gcsAddress=redis", "at '/redis/external/gcsAddress'"),
        ("podSecurity.runAsUser=0", "at '/podSecurity/runAsUser': minimum: got 0, want 1"),
        ("rayVersion=2", "at '/rayVersion'"),
        ("monitoring.interval=often", "at '/monitoring/interval'"),
        # by comparing values
        ("image.tag=latest", "image.tag: latest changes under your feet"),
        ("redis.inCluster.image.tag=latest", "redis.inCluster.image.tag: latest"),
        ("workerGroups.drafters.image.tag=latest", "workerGroups.drafters.image.tag: latest"),
        (
            "workerGroups.verifiers.minReplicas=9",
            "workerGroups.verifiers.minReplicas (9) is above maxReplicas (2)",
        ),
        ("pools.verifier.min_replicas=9", "pools.verifier.min_replicas (9) is above max_replicas (2)"),
        ("pools.drafters.eagle.cpus=1", "pools.drafters.eagle: config.drafters has no eagle"),
        ("pools.verifier.gpus=1", "pools.verifier runs nowhere: no worker group has rayLabels"),
        (
            "pools.gateway.labels.zone=a",
            'pools.gateway runs nowhere: no worker group has rayLabels {"outrider/pool":',
        ),
        ("redis.external.url=redis://r:6379", "redis.external.url is set, and redis.inCluster.enabled too"),
        ("redis.external.url=redis://:pw@r:6379", "redis.external.url holds a password"),
        ("redis.external.cidr=10.0.0.0/8", "redis.external.url is empty"),
        ("upgrade.type=NewClusterWithIncrementalUpgrade", "upgrade.incremental must be set"),
        ("ingress.enabled=true", "ingress.host must be set"),
    ],
)
def test_bad_values_are_refused_and_named(values: str, text: str) -> None:
    done = attempt("helm", "template", "demo", CHART, "--set", values)
    assert done.returncode != 0
    assert text in done.stderr
    assert "pw@" not in done.stderr


@pytest.mark.parametrize("name", RAY_SETS)
def test_store_registry_and_secrets_follow_from_other_values(name: str) -> None:
    config = serve_config(name)["applications"][0]["args"]["config"]
    assert config["registry"] == {"kind": "ray"}
    assert ("store" in config, bool(config["security"])) == (name != "nothing", name != "nothing")


def test_what_config_says_wins_over_what_follows() -> None:
    own = "--set=config.store.ttl_s=5,config.registry.kind=redis,config.store.url=redis://mine"
    text = template(own, "--show-only=templates/rayservice.yaml")
    given = yaml.safe_load(yaml.safe_load(text)["spec"]["serveConfigV2"])["applications"][0]["args"]["config"]
    assert given["store"] == {"kind": "redis", "ttl_s": 5, "url": "redis://mine"}
    assert given["registry"]["kind"] == "redis"


def test_without_autoscaling_each_pool_has_one_size() -> None:
    pools = serve_config("cpu-kind")["applications"][0]["args"]["pools"]
    found = [pools["gateway"], pools["verifier"], *pools["drafters"].values()]
    assert [(pool["min_replicas"], pool["max_replicas"]) for pool in found] == [(1, 1)] * 4
    assert "autoscaling_policy" not in serve_config("cpu-kind")["applications"][0]


def test_with_autoscaling_the_policy_gets_prices_for_every_pool() -> None:
    application = serve_config("gke")["applications"][0]
    policy = application["autoscaling_policy"]
    assert policy["policy_function"] == "outrider.rayserve.autoscaling:ApplicationPolicy"
    assert policy["policy_kwargs"]["drafters"].keys() == application["args"]["config"]["drafters"].keys()


def test_a_name_that_is_too_long_is_cut() -> None:
    text = template("--set=fullnameOverride=" + "a" * 60, "--show-only=templates/rayservice.yaml")
    assert yaml.safe_load(text)["metadata"]["name"] == "a" * 30


def test_groups_inherit_and_may_be_taken_away() -> None:
    changed = "--set=workerGroups.drafters=null,pools.gateway.labels=null"
    text = template(changed, "--show-only=templates/rayservice.yaml")
    groups = yaml.safe_load(text)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert [group["groupName"] for group in groups] == ["verifiers"]


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "0" * 64
    text = template(f"--set=image.digest={digest}", "--show-only=templates/rayservice.yaml")
    assert f"image: outrider@{digest}" in text
