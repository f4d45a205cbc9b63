"""What a configuration becomes before processes are started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.catalogue import CATALOGUE
from outrider.catalogue.progress import Silent
from outrider.cli.stack import child_env, need_models, service_specs, stop_time, with_ports
from outrider.config import OutriderConfig, load_config
from outrider.core.errors import ConfigError
from outrider.gateway.server import GRACE_S, LAST_WORDS_S


def ports_of(config: OutriderConfig) -> list[int]:
    drafters = [drafter.port for drafter in config.drafters.values()]
    return [config.verifier.port, config.gateway.http_port, config.gateway.grpc_port, *drafters]


def test_ports_that_are_given_stay() -> None:
    config = load_config(None)
    assert with_ports(config) == config


def test_every_port_0_becomes_another_free_port() -> None:
    zeros = [
        "verifier.port=0",
        "verifier.metrics_port=0",
        "gateway.http_port=0",
        "gateway.grpc_port=0",
        "drafters.eagle.port=0",
        "drafters.prompt_lookup.port=0",
    ]
    config = with_ports(load_config(None, zeros))
    ports = [*ports_of(config), config.verifier.metrics_port]
    assert 0 not in ports
    assert len(set(ports)) == len(ports)
    assert config.drafters["prompt_lookup"].metrics_port is None


def test_every_service_gets_the_same_configuration_file() -> None:
    config = load_config(None, ["served_name=off"])
    with service_specs(config) as specs:
        assert [spec.name for spec in specs] == [
            "drafter:eagle",
            "drafter:prompt_lookup",
            "verifier",
            "gateway",
        ]
        (path,) = {spec.command[-1] for spec in specs}
        assert load_config(Path(path)) == config
    assert not Path(path).exists()


def test_what_runs_on_another_device_is_not_forked() -> None:
    config = load_config(None, ["verifier.device=cuda"])
    with service_specs(config) as specs:
        forked = {spec.name for spec in specs if spec.words}
        assert forked == {"drafter:eagle", "drafter:prompt_lookup", "gateway"}
        assert all(spec.command[-len(spec.words) :] == spec.words for spec in specs if spec.words)


def test_several_verifiers_have_ports_of_their_own_and_the_gateway_knows_all() -> None:
    config = with_ports(load_config(None, ["verifier.port=0", "verifier.metrics_port=0"]), 3)
    assert len({*config.gateway.verifiers}) == 3
    with service_specs(config, 3) as specs:
        verifiers = {spec.name: spec.command for spec in specs if spec.name.startswith("verifier")}
        assert list(verifiers) == ["verifier-1", "verifier-2", "verifier-3"]
        path = Path(specs[0].command[-1])
        seen = [
            load_config(path, [word for word in command if "=" in word]) for command in verifiers.values()
        ]
    assert tuple(f"{one.verifier.host}:{one.verifier.port}" for one in seen) == config.gateway.verifiers
    assert len({one.verifier.metrics_port for one in seen[:2]}) == 2
    assert [one.model_copy(update={"verifier": config.verifier}) for one in seen] == [config] * 3


@pytest.mark.parametrize("drain_s", [0, 7, 120])
def test_the_stack_is_given_longer_to_stop_than_its_verifiers_may_drain(drain_s: float) -> None:
    assert stop_time(load_config(None, [f"verifier.drain_s={drain_s}"])) >= GRACE_S + LAST_WORDS_S + drain_s


def test_what_the_user_set_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.delenv("MALLOC_MMAP_MAX_", raising=False)
    env = child_env()
    assert env["OMP_WAIT_POLICY"] == "active"
    assert env["MALLOC_MMAP_MAX_"] == "0"
    assert env["PATH"] == os.environ["PATH"]


def test_a_model_that_is_missing_is_named_by_its_field() -> None:
    with pytest.raises(ConfigError, match=r"^model: there is no model 'nowhere'"):
        need_models(load_config(None, ["model=nowhere"]), Silent())
    assert "nowhere" not in CATALOGUE


def test_a_draft_model_needs_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    overrides = [f"model={tmp_path}", "drafters.eagle.model="]
    with pytest.raises(ConfigError, match=r"^drafters.eagle.model: "):
        need_models(load_config(None, [*overrides, 'drafters.eagle.model=""']), Silent())


def test_the_file_of_the_services_keeps_passwords_and_is_private() -> None:
    config = load_config(None, ["store.url=redis://:secret@127.0.0.1/0"])
    with service_specs(config) as specs:
        path = Path(specs[0].command[-1])
        assert load_config(path).store.url == config.store.url
        assert path.stat().st_mode & 0o777 == 0o600
