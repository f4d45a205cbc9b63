"""The Serve configurations in deploy/serve: Ray takes them, and so do we, for the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from outrider.cli.deploying.here import check_fits
from outrider.cli.deploying.models import check_models
from outrider.config import load_config
from outrider.core.errors import ConfigError
from outrider.rayserve.serve_file import load_serve_file
from outrider.scaling.settings import ScalingSettings

FOLDER = Path(__file__).parents[3] / "deploy" / "serve"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_these_are_the_files() -> None:
    assert [path.stem for path in FILES] == ["cpu-demo", "one-gpu-node", "two-pools"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ray_and_outrider_take_it(path: Path) -> None:
    file = load_serve_file(path)
    check_models(file)
    theirs = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))
    assert theirs == file.schema
    assert file.has_grpc
    assert [application.name for application in file.ours] == ["outrider"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_pool_of_a_drafter_is_written_down(path: Path) -> None:
    arguments = load_serve_file(path).ours[0].arguments
    assert set(arguments.pools.drafters) == set(arguments.config.drafters)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_computes_on_a_gpu_is_given_one(path: Path) -> None:
    application = load_serve_file(path).ours[0]
    config = application.arguments.config
    devices = {"verifier": config.verifier.device} | {
        f"drafter-{name}": drafter.device for name, drafter in config.drafters.items()
    }
    given = {name: application.pools[name].gpus > 0 for name in devices}
    assert given == {name: device.startswith("cuda") for name, device in devices.items()}


def test_the_demo_is_the_one_of_outrider_serve() -> None:
    """So that both give the same tokens: what differs decides only who computes when."""
    ours, theirs = load_serve_file(FOLDER / "cpu-demo.yaml").ours[0].arguments.config, load_config(None)
    free: dict[str, Any] = {"port": 0, "threads": 0}
    assert ours.model == theirs.model
    assert ours.verifier.model_copy(update=free) == theirs.verifier.model_copy(update=free)
    assert {name: one.model_copy(update=free) for name, one in ours.drafters.items()} == {
        name: one.model_copy(update=free) for name, one in theirs.drafters.items()
    }


def test_the_demo_fits_two_cores_and_listens_at_the_loopback() -> None:
    file = load_serve_file(FOLDER / "cpu-demo.yaml")
    check_fits(file, {"CPU": 2.0})
    assert file.schema.http_options.host == "127.0.0.1"
    assert file.ours[0].arguments.loopback


def test_what_does_not_fit_is_said_with_what_each_takes() -> None:
    file = load_serve_file(FOLDER / "two-pools.yaml")
    with pytest.raises(ConfigError) as error:
        check_fits(file, {"CPU": 8.0, "GPU": 1.0})
    text = str(error.value)
    assert "5 gpus are needed at least (verifier 4, drafter-eagle 1), this machine has 1" in text
    assert "verifier wants nodes with labels {'tier': 'verify'}, and this machine has none" in text


def test_two_pools_scale_by_settings_with_prices() -> None:
    file = load_serve_file(FOLDER / "two-pools.yaml")
    policy = file.schema.applications[0].autoscaling_policy
    assert policy is not None
    settings = ScalingSettings.model_validate(policy["policy_kwargs"])
    assert settings.verifier.price > settings.of_drafter("eagle").price > 0
    assert file.ours[0].arguments.config.store.kind == "redis"
