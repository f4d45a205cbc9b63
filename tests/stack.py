"""A real stack as real processes on free ports of the loopback, for end-to-end and fault tests.

    with Stack(folder, tiny_config(folder)) as stack:
        ...                      # stack.http, stack.grpc, stack["verifier"].kill(), ...

Each service is started by its own command, so that a test can kill, freeze and restart any of
them. At exit all are stopped; every one that no test killed must have stopped by itself, cleanly,
and no process may be left.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import httpx
import psutil
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.tiny_models import make_tiny

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 20
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are held open until all are found, so none comes twice."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


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


class Service:
    """One process of a stack."""

    def __init__(self, name: str, command: list[str], address: str, log: Path) -> None:
        self.name, self.command, self.address, self.log = name, command, address, log
        self.process: subprocess.Popen[bytes] | None = None
        self.expected_to_die = False

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    def start(self) -> None:
        """Start it; `wait_serving` says when it is there."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )
        self.expected_to_die = False

    def wait_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return as soon as grpc.health.v1 says SERVING."""
        wait_until(self.serving, f"{self.name} is serving", timeout_s=timeout_s, check=self._check_alive)

    def serving(self) -> bool:
        """Does its health service say so?"""
        with grpc.insecure_channel(self.address, [("grpc.enable_http_proxy", 0)]) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=2, wait_for_ready=True
                )
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _check_alive(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.log_tail()}")

    def log_tail(self, lines: int = 40) -> str:
        """The end of what it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.expected_to_die = True
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM (and SIGCONT, in case it is frozen)."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)

    def finish(self) -> str:
        """Wait for its end after `terminate`; what was wrong with it, or nothing."""
        if self.process is None:
            return ""
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self.name} did not stop within {STOP_TIMEOUT_S} s:\n{self.log_tail()}"
        if code != 0 and not self.expected_to_die:
            return f"{self.name} ended with {code}:\n{self.log_tail()}"
        return ""


class Stack:
    """Drafters, verifier and gateway of one configuration. A context manager."""

    def __init__(self, folder: Path, config: Mapping[str, Any], *, absent: tuple[str, ...] = ()) -> None:
        """`absent`: drafters that are configured but not started; the test plays them itself."""
        self.folder = folder
        self.config: dict[str, Any] = dict(config)
        names = list(self.config.get("drafters", {}))
        ports = iter(free_ports(4 + 2 * len(names)))
        verifier = {"port": next(ports), "metrics_port": next(ports)}
        gateway = {"http_port": next(ports), "grpc_port": next(ports)}
        self.config["verifier"] = {**self.config.get("verifier", {}), **verifier}
        self.config["gateway"] = {**self.config.get("gateway", {}), **gateway}
        self.config["drafters"] = {
            name: {**self.config["drafters"][name], "port": next(ports), "metrics_port": next(ports)}
            for name in names
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.config_path = folder / "stack.yaml"
        self.config_path.write_text(yaml.safe_dump(self.config, sort_keys=False))
        self.http = f"http://127.0.0.1:{gateway['http_port']}"
        self.grpc = f"127.0.0.1:{gateway['grpc_port']}"
        self.services = {
            name: self._service(name, ["drafter", name], self.config["drafters"][name]["port"])
            for name in names
            if name not in absent
        }
        self.services["verifier"] = self._service("verifier", ["verifier"], verifier["port"])
        self.services["gateway"] = self._service("gateway", ["gateway"], gateway["grpc_port"])

    def _service(self, name: str, words: list[str], port: int) -> Service:
        command = [sys.executable, "-m", "outrider.cli.main", *words, "--config", str(self.config_path)]
        return Service(name, command, f"127.0.0.1:{port}", self.folder / f"{name}.log")

    def __getitem__(self, name: str) -> Service:
        return self.services[name]

    def __enter__(self) -> Stack:
        try:
            for service in self.services.values():
                service.start()
            for service in self.services.values():
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
        """Stop everything, gateway first; what went wrong."""
        groups = {service.pid for service in self.services.values() if service.process is not None}
        self.services["gateway"].terminate()
        problems = [self.services["gateway"].finish()]
        for service in self.services.values():
            service.terminate()
        problems += [service.finish() for service in self.services.values()]
        for process in psutil.process_iter():
            if _group_of(process) in groups:
                problems.append(f"left behind: {process}")
                process.kill()
        return [problem for problem in problems if problem]

    def metrics(self, name: str) -> dict[str, float]:
        """What a service's /metrics says now: `name{label=value,...}` -> value, zeros included."""
        if name == "gateway":
            url = self.http
        else:
            place = self.config["verifier"] if name == "verifier" else self.config["drafters"][name]
            url = f"http://127.0.0.1:{place['metrics_port']}"
        answer = httpx.get(f"{url}/metrics", trust_env=False, timeout=10)
        answer.raise_for_status()
        return parse_metrics(answer.text)


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text as a flat table."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return values


def total(values: Mapping[str, float], name: str) -> float:
    """Sum over all labels of one sample name."""
    return sum(value for key, value in values.items() if key.partition("{")[0] == name)


def _group_of(process: psutil.Process) -> int | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getpgid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *,
    timeout_s: float = 30,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Look again and again until `condition` holds; it is the one place here that waits by the clock."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.05)
