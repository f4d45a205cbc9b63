"""From a configuration to the processes of a local stack."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from outrider.catalogue import CATALOGUE, Progress, fetch, is_fetched, resolve
from outrider.cli.children import ServiceSpec
from outrider.config import OutriderConfig, dump_config
from outrider.config.processes import ENVIRONMENT
from outrider.core.errors import ConfigError

GATEWAY, VERIFIER = "gateway", "verifier"
STOP_S = 8.0
"""For stopping the stack, beside what verifiers drain: the gateway's grace, last commits, drafters."""
DRAFTER_PAUSE_S = 1.0
"""A drafter that is away costs speed all the time, so it is started again soon."""


def stop_time(config: OutriderConfig) -> float:
    """Seconds that stopping the stack may take, unless the user says otherwise."""
    return STOP_S + config.verifier.drain_s


def drafter_service(name: str) -> str:
    """How the service that runs drafter `name` is called."""
    return f"drafter:{name}"


def child_env() -> dict[str, str]:
    """Our environment with what services need by default; what the user set stays."""
    return ENVIRONMENT | os.environ


def need_models(config: OutriderConfig, progress: Progress) -> None:
    """Fetch the catalogue's models that `config` names and check that all models are there.

    Raises:
        ConfigError: the field that names a model, and what is wrong with it.
    """
    for field, (name, head) in models_of(config).items():
        if name in CATALOGUE and not is_fetched(name):
            fetch(name, progress)
        try:
            resolve(name, head=head)
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}") from None


def with_ports(config: OutriderConfig, verifiers: int = 1) -> OutriderConfig:
    """`config` with every port 0 replaced by a free one, so that services can find each other.

    Several `verifiers` differ in their ports: the first one has its own, the others free ones. The
    gateway's list names them all.
    """
    with ExitStack() as held:  # all of them at once, so that no port is given twice

        def port(host: str, wanted: int | None) -> int | None:
            if wanted != 0:
                return wanted
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            probe = held.enter_context(socket.socket(family))
            probe.bind((host, 0))
            return int(probe.getsockname()[1])

        verifier, gateway = config.verifier, config.gateway
        ports = [port(verifier.host, verifier.port), *(port(verifier.host, 0) for _ in range(verifiers - 1))]
        several = tuple(f"{verifier.host}:{number}" for number in ports) if verifiers > 1 else ()
        drafters = {
            name: drafter.model_copy(
                update={
                    "port": port(drafter.host, drafter.port),
                    "metrics_port": port(drafter.host, drafter.metrics_port),
                }
            )
            for name, drafter in config.drafters.items()
        }
        return config.model_copy(
            update={
                "verifier": verifier.model_copy(
                    update={
                        "port": ports[0],
                        "metrics_port": port(verifier.host, verifier.metrics_port),
                    }
                ),
                "drafters": drafters,
                "gateway": gateway.model_copy(
                    update={
                        "http_port": port(gateway.host, gateway.http_port),
                        "grpc_port": port(gateway.host, gateway.grpc_port),
                        "verifiers": several or gateway.verifiers,
                    }
                ),
            }
        )


@contextmanager
def service_specs(config: OutriderConfig, verifiers: int = 1) -> Iterator[list[ServiceSpec]]:
    """The processes of the stack; the file that tells them their configuration lives as long as this.

    With several `verifiers`, `config` is what `with_ports` made for as many.
    """
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        path = Path(folder) / "config.yaml"
        path.touch(mode=0o600)  # it may hold passwords
        path.write_text(dump_config(config), "utf-8")

        def spec(name: str, words: tuple[str, ...], stop_order: int, device: str = "cpu") -> ServiceSpec:
            words = (*words, "--config", str(path))
            forked = words if device == "cpu" else ()  # what belongs to another device stands no fork
            command = (sys.executable, "-m", "outrider.cli.main", *words)
            return ServiceSpec(name, command, stop_order=stop_order, words=forked)

        drafters = [
            replace(
                spec(drafter_service(name), ("drafter", name), 2, drafter.device), max_pause_s=DRAFTER_PAUSE_S
            )
            for name, drafter in config.drafters.items()
        ]
        yield [
            *drafters,
            *(
                spec(name, ("verifier", *own), 1, config.verifier.device)
                for name, own in _verifiers(config, verifiers)
            ),
            spec(GATEWAY, ("gateway",), 0),  # it drains first, while the others still answer
        ]


def _verifiers(config: OutriderConfig, count: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name of each verifier's service, and what it has other than the file says."""
    if count == 1:
        yield VERIFIER, ()
        return
    for number, address in enumerate(config.gateway.verifiers, 1):
        own = [f"verifier.port={address.rpartition(':')[2]}"]
        if number > 1 and config.verifier.metrics_port is not None:
            own.append("verifier.metrics_port=0")
        yield f"{VERIFIER}-{number}", tuple(word for change in own for word in ("--set", change))


def models_of(config: OutriderConfig) -> dict[str, tuple[str, bool]]:
    """By field: the model that it names, and whether that is a draft head."""
    drafters = {
        f"drafters.{name}.model": (drafter.model, drafter.method != "draft_model")
        for name, drafter in config.drafters.items()
        if drafter.method in ("draft_model", "medusa", "eagle")
    }
    return {"model": (config.model, False)} | drafters
