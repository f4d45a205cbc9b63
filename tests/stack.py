"""A real stack as real processes on free ports of the loopback, for end-to-end and fault tests.

    with Stack(folder, tiny_config(folder)) as stack:
        ...                      # stack.http, stack.grpc, stack["verifier"].kill(), ...

Each service is a process of its own, forked from one template as `outrider serve` does it, so that a test
can kill, freeze and restart any of them. At exit all are stopped; every one that no test killed must have
stopped by itself, cleanly, and no process may be left.

There may be several replicas of each: `Stack(..., verifiers=2, gateways=2, replicas={"twin": 2})` has
`verifier-1`, `verifier-2`, `gateway-1`, ..., `twin-2`. Each finds the others by the lists in its own
configuration, or by the registry if `config["registry"]` says so. `proxied` names replicas that others
reach only through a proxy: `stack.proxies[name]`, and for a gateway's HTTP `stack.proxies[f"{name}/http"]`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml

from tests.forked import ENVIRONMENT
from tests.processes import (
    Service,
    Trust,
    free_ports,
    group_of,
    parse_metrics,
    total,
    wait_until,
)
from tests.proxy import Proxy
from tests.tiny_models import make_tiny

__all__ = [
    "ENVIRONMENT",
    "Service",
    "Stack",
    "Trust",
    "free_ports",
    "parse_metrics",
    "tiny_config",
    "total",
    "wait_until",
]


def tiny_config(folder: Path, *, kind: str = "llama", dtype: str = "float32") -> dict[str, Any]:
    """A stack of tiny random models: a target, itself as its draft, another draft, prompt lookup.

    `twin` is the target once more: greedy, all it proposes is accepted. `other` has other weights.
    """
    target = make_tiny(kind, folder / "target")
    other = make_tiny(kind, folder / "other", seed=1, layers=1)
    draft = {"method": "draft_model", "dtype": dtype, "threads": 1, "pool_tokens": 16384}
    return {
        "model": str(target),
        "served_name": "tiny",
        "verifier": {"dtype": dtype, "threads": 1, "pool_tokens": 32768, "draft_length": 3},
        "drafters": {
            "twin": {**draft, "model": str(target)},
            "other": {**draft, "model": str(other)},
            "lookup": {"method": "prompt_lookup", "tree": "dynamic"},
        },
    }


@dataclass(frozen=True)
class _Replica:
    """One process to be: its name here, the words of its command, its part of the configuration."""

    name: str
    words: tuple[str, ...]
    section: tuple[str, ...]  # where its own settings stand in the configuration
    own: dict[str, Any]  # ports

    @property
    def port(self) -> int:
        """Of its gRPC server."""
        return int(self.own.get("port") or self.own["grpc_port"])

    @property
    def metrics_port(self) -> int:
        """Of its page of metrics."""
        return int(self.own.get("metrics_port") or self.own["http_port"])


class Stack:
    """Drafters, verifiers and gateways of one configuration. A context manager."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        absent: Collection[str] = (),
        later: Collection[str] = (),
        verifiers: int = 1,
        gateways: int = 1,
        replicas: Mapping[str, int] | None = None,
        proxied: Collection[str] = (),
        public: Trust | None = None,
    ) -> None:
        """How many there are of each.

        Args:
            folder: for configurations and logs.
            config: what all have in common. Ports are added.
            absent: drafters that are configured but not started; the test plays them itself.
            later: services that the test starts itself.
            verifiers: how many.
            gateways: how many.
            replicas: of drafters, where it is not one.
            proxied: services that the others (and, of gateways, clients) reach through a proxy only.
            public: how gateways are reached, if `config` has them speak TLS.
        """
        self.folder = folder
        self.config: dict[str, Any] = dict(config)
        self.proxies: dict[str, Proxy] = {}
        self._later = later
        self._public = public
        self._exits = ExitStack()
        folder.mkdir(parents=True, exist_ok=True)
        planned = list(self._plan(verifiers, gateways, replicas or {}))
        for replica in planned:
            if replica.name in proxied:
                self._put_proxy(replica.name, replica.port)
                if replica.section == ("gateway",):
                    self._put_proxy(f"{replica.name}/http", replica.metrics_port)
        self._introduce(planned)
        self.services = {
            replica.name: self._service(replica) for replica in planned if replica.name not in absent
        }
        first = self.all("gateway")[0]
        self.http, self.grpc = first.http, first.reached

    def _put_proxy(self, name: str, port: int) -> None:
        self.proxies[name] = self._exits.enter_context(Proxy(f"127.0.0.1:{port}", record=True))

    def _plan(self, verifiers: int, gateways: int, replicas: Mapping[str, int]) -> Iterator[_Replica]:
        """Every process with its ports. The configuration in common gets those of each first one."""
        drafters: dict[str, Any] = {
            name: dict(settings) for name, settings in self.config.get("drafters", {}).items()
        }
        kinds = [(("drafters", name), ("drafter", name), replicas.get(name, 1)) for name in drafters]
        kinds += [(("verifier",), ("verifier",), verifiers), (("gateway",), ("gateway",), gateways)]
        ports = iter(free_ports(2 * sum(count for _, _, count in kinds)))
        self.config |= {
            "drafters": drafters,
            "verifier": dict(self.config.get("verifier", {})),
            "gateway": dict(self.config.get("gateway", {})),
        }
        for section, words, count in kinds:
            of_port, of_metrics = (
                ("grpc_port", "http_port") if section == ("gateway",) else ("port", "metrics_port")
            )
            for number in range(1, count + 1):
                own = {of_port: next(ports), of_metrics: next(ports)}
                name = section[-1] if count == 1 else f"{section[-1]}-{number}"
                if number == 1:
                    self._part(self.config, section).update(own)
                yield _Replica(name, words, section, own)

    def _introduce(self, planned: list[_Replica]) -> None:
        """Tell each of the others, where one address in the configuration is not enough."""
        if self.config.get("registry", {}).get("kind", "static") != "static":
            return
        for section in {replica.section: None for replica in planned if replica.section != ("gateway",)}:
            these = [replica for replica in planned if replica.section == section]
            if len(these) > 1 or these[0].name in self.proxies:
                addresses = [self._reached(replica) for replica in these]
                where = ("gateway", "verifiers") if section == ("verifier",) else (*section, "addresses")
                self._part(self.config, where[:-1])[where[-1]] = addresses

    def _service(self, replica: _Replica) -> Service:
        config = {**self.config, "drafters": dict(self.config["drafters"])}
        part = {**self._part(config, replica.section), **replica.own}
        if replica.name in self.proxies and replica.section != ("gateway",):
            part["advertise"] = self._reached(replica)
        self._part(config, replica.section[:-1])[replica.section[-1]] = part
        path = self.folder / f"{replica.name}.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        http = self.proxies.get(f"{replica.name}/http")
        gateway = replica.section == ("gateway",)
        scheme = "https" if gateway and self._public is not None else "http"
        return Service(
            replica.name,
            [*replica.words, "--config", str(path)],
            f"127.0.0.1:{replica.port}",
            self.folder / f"{replica.name}.log",
            page=f"{scheme}://127.0.0.1:{replica.metrics_port}",
            reached=self._reached(replica),
            http=f"{scheme}://{http.address}" if http is not None else "",
            trust=self._public if gateway else self._internal(),
        )

    def _internal(self) -> Trust | None:
        """How a service behind the gateways is reached: as they do it themselves."""
        tls = self.config.get("security", {}).get("internal_tls")
        return Trust(**tls) if tls else None

    def _reached(self, replica: _Replica) -> str:
        """Where others reach it."""
        proxy = self.proxies.get(replica.name)
        return proxy.address if proxy is not None else f"127.0.0.1:{replica.port}"

    @staticmethod
    def _part(config: dict[str, Any], section: tuple[str, ...]) -> dict[str, Any]:
        for name in section:
            config = config[name]
        return config

    def __getitem__(self, name: str) -> Service:
        return self.services[name]

    def all(self, role: str) -> list[Service]:
        """Every replica of "verifier", of "gateway", or of a drafter."""
        return [
            service
            for name, service in self.services.items()
            if name == role or (name.rpartition("-")[0] == role and name.rpartition("-")[2].isdecimal())
        ]

    def __enter__(self) -> Stack:
        try:
            started = [service for service in self.services.values() if service.name not in self._later]
            for service in started:
                service.start()
            for service in started:
                service.wait_serving()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        problems = self.stop()
        if error is None:
            assert not problems, "\n".join(problems)

    def stop(self) -> list[str]:
        """Stop everything, gateways first; what went wrong."""
        groups = {service.pid for service in self.services.values() if service.process is not None}
        problems = []
        for services in (self.all("gateway"), self.services.values()):
            for service in services:
                service.terminate()
            problems += [service.finish() for service in services]
        for process in psutil.process_iter():
            if group_of(process) in groups:
                problems.append(f"left behind: {process}")
                process.kill()
        self._exits.close()
        return [problem for problem in problems if problem]

    def metrics(self, name: str) -> dict[str, float]:
        """What a service's /metrics says now: `name{label=value,...}` -> value, zeros included."""
        return self.services[name].metrics()
