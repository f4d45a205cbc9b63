"""What is wrong with a Serve configuration file is said before a cluster sees it: where, what, what else."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from outrider.core.errors import ConfigError
from outrider.rayserve.serve_file import BUILDER, POLICY, ServeFile, parse_serve_text
from outrider.rayserve.servicing import SERVICER


def file_with(**application: Any) -> dict[str, Any]:
    """A file that is right, but for what its application is given."""
    return {"applications": [{"name": "outrider", "import_path": BUILDER, "args": {}} | application]}


def parsed(data: dict[str, Any]) -> ServeFile:
    return parse_serve_text(yaml.safe_dump(data, sort_keys=False), "file.yaml")


LOOKUP = {"method": "prompt_lookup"}
BOUNDS = {"min_replicas": 1, "max_replicas": 3}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown at the top": (
        {"http_option": {}} | file_with(),
        "file.yaml: http_option: there is no 'http_option' here; did you mean 'http_options'?",
    ),
    "unknown in options that Ray would ignore": (
        {"http_options": {"prt": 1}} | file_with(),
        "http_options.prt: there is no 'prt' in http_options; did you mean 'port'?",
    ),
    "unknown in an application": (
        file_with(autoscaling={}),
        "applications.0.autoscaling: "
        "there is no 'autoscaling' in applications.0; did you mean 'autoscaling_policy'?",
    ),
    "of a wrong type": (
        {"http_options": {"port": "first"}} | file_with(),
        "http_options.port: input should be a valid integer",
    ),
    "no application of ours": (
        {"applications": [{"name": "other", "import_path": "other:app"}]},
        f"applications: none of them is Outrider: import_path must be {BUILDER}",
    ),
    "no applications at all": ({"http_options": {}}, "applications: field required"),
    "unknown in args": (
        file_with(args={"pool": {}}),
        "applications.0.args.pool: there is no 'pool' in applications.0.args; did you mean 'pools'?",
    ),
    "unknown deep in args": (
        file_with(args={"config": {"verifier": {"drain": 3}}}),
        "applications.0.args.config.verifier.drain: "
        "there is no 'drain' in applications.0.args.config.verifier",
    ),
    "out of bounds": (
        file_with(args={"config": {"verifier": {"tensor_parallel": 0}}}),
        "applications.0.args.config.verifier.tensor_parallel: "
        "input should be greater than or equal to 1, got 0",
    ),
    "bounds that cross": (
        file_with(args={"pools": {"verifier": {"min_replicas": 3, "max_replicas": 2}}}),
        "applications.0.args.pools.verifier: max_replicas (2) is below min_replicas (3)",
    ),
    "a registry that replicas cannot enter": (
        file_with(args={"config": {"registry": {"kind": "static"}}}),
        "applications.0.args: config.registry.kind is static, but under Ray Serve replicas come and go",
    ),
    "what has no effect behind Serve": (
        file_with(args={"config": {"security": {"public_tls": {"ca": "ca.pem"}}}}),
        "applications.0.args.config.security.public_tls has no effect under Ray Serve",
    ),
    "a pool of nobody": (
        file_with(args={"pools": {"drafters": {"eagel": {}}}}),
        "applications.0.args: pools.drafters names ['eagel'], but config.drafters has []",
    ),
    "a deployment that there is not": (
        file_with(deployments=[{"name": "verifiers"}]),
        "applications.0.deployments.0.name: "
        "there is no 'verifiers' in this application; did you mean 'verifier'?",
    ),
    "bounds that nobody decides between": (
        file_with(args={"pools": {"verifier": BOUNDS}}),
        "verifier may have 1 to 3 replicas, but nothing decides how many",
    ),
    "settings of the policy": (
        file_with(autoscaling_policy={"policy_function": POLICY, "policy_kwargs": {"verifier": {"cost": 1}}}),
        "applications.0.autoscaling_policy.policy_kwargs.verifier.cost: there is no 'cost' in "
        "applications.0.autoscaling_policy.policy_kwargs.verifier",
    ),
    "settings of a drafter that there is not": (
        file_with(
            args={"config": {"drafters": {"lookup": LOOKUP}}},
            autoscaling_policy={"policy_function": POLICY, "policy_kwargs": {"drafters": {"loockup": {}}}},
        ),
        "policy_kwargs.drafters: there is no 'loockup' in drafters; did you mean 'lookup'?",
    ),
    "a policy that cannot be imported": (
        file_with(autoscaling_policy={"policy_function": "outrider.rayserve.autoscaling:Nothing"}),
        "applications.0.autoscaling_policy.policy_function: "
        "cannot import 'outrider.rayserve.autoscaling:Nothing'",
    ),
    "a servicer that cannot be imported": (
        {"grpc_options": {"grpc_servicer_functions": ["outrider.wire.nothing.add"]}} | file_with(),
        "grpc_options.grpc_servicer_functions.0: cannot import 'outrider.wire.nothing.add'",
    ),
}


@pytest.mark.parametrize(("data", "said"), WRONG.values(), ids=WRONG.keys())
def test_it_is_said(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed(data)
    assert said in str(error.value)
    assert str(error.value).startswith("file.yaml:")


def test_all_that_is_wrong_is_said_at_once() -> None:
    data = file_with(args={"config": {"verifier": {"drain_s": -1}}, "pools": {"gateway": {"cpus": -1}}})
    data["grpc_options"] = {"grpc_servicer_functions": ["nothing.add"]}
    with pytest.raises(ConfigError) as error:
        parsed(data)
    for field in ("verifier.drain_s", "pools.gateway.cpus", "grpc_servicer_functions.0"):
        assert field in str(error.value)


def test_passwords_are_not_repeated() -> None:
    url = "redis://:geheim@host"
    with pytest.raises(ConfigError) as error:
        parsed(file_with(args={"config": {"store": {"kind": url}}}))
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: off", "applications.0.name: 'off' is False to Ray Serve and Kubernetes: put it in quotes"),
        ("name: 2026-11-30", "'2026-11-30' is datetime.date(2026, 11, 30) to Ray Serve"),
        (
            "args: {config: {verifier: {drain_s: 1e1}}}",
            "drain_s: 10.0 is '1e1' to Ray Serve and Kubernetes: write 10.0",
        ),
        ("on: 1", "applications.0.on: 'on' is no text to Ray Serve"),
        ("name: a\n  name: b", "the key 'name' stands here twice"),
    ],
)
def test_what_serve_would_read_otherwise_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_serve_text(f"applications:\n- import_path: {BUILDER}\n  {text}\n", "file.yaml")
    assert said in str(error.value)


def test_both_ways_to_write_the_import_path_are_ours() -> None:
    file = parsed(file_with(import_path=BUILDER.replace(":", ".")))
    assert [one.name for one in file.ours] == ["outrider"]


def test_other_applications_are_left_to_ray() -> None:
    data = file_with()
    data["applications"].append(
        {"name": "other", "route_prefix": "/other", "import_path": "other:app", "args": {"x": 1}}
    )
    file = parsed(data)
    assert [one.name for one in file.ours] == ["outrider"]
    assert len(file.schema.applications) == 2


def test_grpc_is_there_if_its_servicer_is() -> None:
    assert not parsed(file_with()).has_grpc
    assert parsed({"grpc_options": {"grpc_servicer_functions": [SERVICER]}} | file_with()).has_grpc


def test_gateways_may_scale_without_a_policy_of_ours() -> None:
    """Requests go through Serve to them, so its own rule sees the load."""
    assert parsed(file_with(args={"pools": {"gateway": BOUNDS}})).ours[0].pools["gateway"].max_replicas == 3


def test_pools_that_the_file_leaves_out_have_defaults() -> None:
    file = parsed(file_with(args={"config": {"drafters": {"lookup": LOOKUP}}}))
    assert set(file.ours[0].pools) == {"gateway", "verifier", "drafter-lookup"}
