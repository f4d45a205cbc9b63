"""The stack of containers: its commands are real, its files exist, and its parts fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer
import yaml

from outrider.cli.main import app
from outrider.config import load_config

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
STACK = yaml.safe_load(COMPOSE.read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
OURS = {name: one for name, one in SERVICES.items() if "outrider:" in one["image"]}
CONFIG = "/etc/outrider/outrider.yaml"
ALLOWED = {
    *("build", "cap_drop", "command", "depends_on", "deploy", "environment", "healthcheck", "image"),
    *("logging", "ports", "read_only", "restart", "security_opt", "stop_grace_period", "tmpfs"),
    *("user", "volumes"),
}
"""Keys of services in the compose specification that are used here."""
WITHOUT_CHECK = {"otel-collector", "jaeger"}
"""Images that hold nothing which could check them."""


def configuration(name: str) -> Any:
    """What a service of ours runs with."""
    command = OURS[name]["command"]
    overrides = [command[i + 1] for i, word in enumerate(command) if word == "--set"]
    return load_config(DEPLOY / "compose" / "outrider.yaml", overrides)


@pytest.mark.parametrize("name", SERVICES)
def test_services_have_known_keys_and_sound_habits(name: str) -> None:
    service = SERVICES[name]
    assert set(service) <= ALLOWED
    assert re.search(r":v?\d+\.\d+[\w.-]*\}?$", service["image"]), "no pinned tag"
    assert service["restart"] in ("unless-stopped", "on-failure:5")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert ("healthcheck" in service) == (name not in WITHOUT_CHECK)
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_exists(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, target, *mode = volume.split(":")
        if source.startswith("."):
            assert (COMPOSE.parent / source).exists()
            assert mode == ["ro"]
        else:
            assert source in STACK["volumes"]
        assert target.startswith("/")


def test_dependencies_exist_and_can_be_waited_for() -> None:
    for service in SERVICES.values():
        needed = service.get("depends_on", {})
        assert set(needed) <= set(SERVICES)
        for name, how in needed.items() if isinstance(needed, dict) else ():
            if how["condition"] == "service_healthy":
                assert "test" in SERVICES[name]["healthcheck"]


@pytest.mark.parametrize("name", OURS)
def test_commands_are_ones_that_outrider_has(name: str) -> None:
    command, words = typer.main.get_command(app), list(OURS[name]["command"])
    while hasattr(command, "resolve_command"):  # a group of commands
        context = command.context_class(command, info_name=command.name)
        _, command, words = command.resolve_command(context, words)
    parsed = command.make_context(command.name, words)
    if name != "models":
        assert parsed.params["config"] == Path(CONFIG)
        assert any(volume.endswith(f":{CONFIG}:ro") for volume in OURS[name]["volumes"])


@pytest.mark.parametrize("name", sorted(set(OURS) - {"models"}))
def test_health_checks_ask_where_the_service_listens_and_others_find_it_there(name: str) -> None:
    config, command = configuration(name), OURS[name]["command"]
    asked = OURS[name]["healthcheck"]["test"][-1]
    if command[0] == "gateway":
        assert asked == f"http://127.0.0.1:{config.gateway.http_port}/health"
        own = config.gateway
        port = config.gateway.grpc_port
    else:
        own = config.verifier if command[0] == "verifier" else config.drafters[command[1]]
        port = own.port
        assert asked == f"grpc://127.0.0.1:{port}"
        assert own.metrics_port is not None
    assert own.advertise == f"{name}:{port}"
    assert own.host == "0.0.0.0"


def test_every_drafter_is_run_and_there_are_two_verifiers() -> None:
    commands = [service["command"] for service in OURS.values()]
    assert {words[1] for words in commands if words[0] == "drafter"} == set(configuration("gateway").drafters)
    assert [words[0] for words in commands].count("verifier") == 2
    grace = {int(one["stop_grace_period"].removesuffix("s")) for one in OURS.values()}
    assert min(grace) > configuration("gateway").verifier.drain_s + 5


def test_the_configuration_names_services_of_the_stack() -> None:
    config = configuration("gateway")
    for url, name, port in (
        (config.store.url, "redis", "6379"),
        (config.telemetry.otlp_endpoint, "otel-collector", "4317"),
    ):
        assert re.search(rf"//{name}:{port}\b", url)
        assert name in SERVICES


def test_nothing_in_it_is_secret() -> None:
    text = yaml.safe_dump(STACK).lower()
    assert not re.search(r"(password|secret|token|api_key)\w*\s*[:=]\s*\S", text)


class TestPrometheus:
    """What Prometheus of this stack is told."""

    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text("utf-8"))

    def test_it_asks_services_of_the_stack_at_ports_that_they_have(self) -> None:
        gateway = configuration("gateway").gateway
        jobs = {job["job_name"]: job for job in self.config["scrape_configs"]}
        [discovery] = jobs["outrider"]["http_sd_configs"]
        assert discovery["url"] == f"http://gateway:{gateway.http_port}/metrics/targets"
        hosts = {
            target.rpartition(":")[0]
            for job in jobs.values()
            for group in job.get("static_configs", [])
            for target in group["targets"]
        }
        assert hosts - {"localhost"} <= set(SERVICES)

    def test_its_rules_lie_where_it_looks(self) -> None:
        [pattern] = self.config["rule_files"]
        assert len(list((DEPLOY / "prometheus").glob(pattern))) == 3


class TestCollector:
    """What the OpenTelemetry collector of this stack is told."""

    config = yaml.safe_load((DEPLOY / "otel" / "collector.yaml").read_text("utf-8"))
    known: ClassVar = {  # of the contrib image
        "receivers": {"otlp"},
        "processors": {"memory_limiter", "tail_sampling", "batch"},
        "exporters": {"otlp", "prometheus"},
        "connectors": {"spanmetrics"},
        "extensions": {"health_check"},
    }

    def test_pipelines_are_made_of_what_is_configured_and_nothing_is_left_over(self) -> None:
        pipelines = self.config["service"]["pipelines"]
        connectors = set(self.config["connectors"])
        for part in ("receivers", "processors", "exporters"):
            used = {name for pipeline in pipelines.values() for name in pipeline.get(part, [])}
            assert used - connectors == set(self.config[part])
        for connector in connectors:
            assert any(connector in pipeline["exporters"] for pipeline in pipelines.values())
            assert any(connector in pipeline["receivers"] for pipeline in pipelines.values())
        assert set(self.config["service"]["extensions"]) == set(self.config["extensions"])
        for part, known in self.known.items():
            assert {name.partition("/")[0] for name in self.config[part]} <= known

    def test_memory_is_bounded_first_and_batches_are_made_last(self) -> None:
        for name, pipeline in self.config["service"]["pipelines"].items():
            if name.startswith("traces"):
                assert pipeline["processors"][0] == "memory_limiter"
            if "batch" in pipeline["processors"]:
                assert pipeline["processors"][-1] == "batch"

    def test_it_sends_to_and_is_asked_at_ports_that_exist(self) -> None:
        host, _, port = self.config["exporters"]["otlp/jaeger"]["endpoint"].partition(":")
        assert (host in SERVICES, port) == (True, "4317")
        [reader] = self.config["service"]["telemetry"]["metrics"]["readers"]
        offered = {
            str(reader["pull"]["exporter"]["prometheus"]["port"]),
            self.config["exporters"]["prometheus"]["endpoint"].rpartition(":")[2],
        }
        [job] = [
            one for one in TestPrometheus.config["scrape_configs"] if one["job_name"] == "otel-collector"
        ]
        asked = {target.rpartition(":")[2] for group in job["static_configs"] for target in group["targets"]}
        assert asked == offered

    def test_what_it_takes_from_the_environment_is_given(self) -> None:
        text = (DEPLOY / "otel" / "collector.yaml").read_text("utf-8")
        assert set(re.findall(r"\$\{env:(\w+)", text)) == set(SERVICES["otel-collector"]["environment"])
