"""One service as a real process: started, killed, frozen, drained, and asked how it is."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from outrider.client import tls_credentials
from tests.forked import Forked, template

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 20


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


@dataclass(frozen=True)
class Trust:
    """How a test reaches a service that speaks TLS. Files in PEM."""

    ca: str
    certificate: str = ""  # with its key: the caller's own
    key: str = ""
    server_name: str = ""

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC."""
        return tls_credentials(Path(self.ca), *(Path(file) if file else None for file in self._own))

    @property
    def options(self) -> list[tuple[str, str]]:
        """Of a gRPC channel."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []

    def context(self) -> ssl.SSLContext:
        """For HTTP."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate:
            context.load_cert_chain(*self._own)
        return context

    @property
    def _own(self) -> tuple[str, str]:
        return self.certificate, self.key


class Service:
    """One process of a stack."""

    def __init__(
        self,
        name: str,
        words: list[str],
        address: str,
        log: Path,
        *,
        page: str = "",
        reached: str = "",
        http: str = "",
        trust: Trust | None = None,
    ) -> None:
        """A service that is not started yet.

        Args:
            name: in the stack.
            words: of the `outrider` command that is run.
            address: host:port of its gRPC server.
            log: what it writes goes here.
            page: URL of the server that has its /metrics.
            reached: host:port where others reach its gRPC server, if there is a proxy between.
            http: the same for a gateway's HTTP, as a URL.
            trust: how to reach its gRPC server, and a gateway's page; None: both are plaintext.
        """
        self.name, self.words, self.address, self.log = name, words, address, log
        self.page = page
        self.reached = reached or address
        self.http = http or page
        self.trust = trust
        self.process: Forked | None = None
        self.expected_to_die = False

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    def start(self) -> None:
        """Start it; `wait_serving` says when it is there."""
        with self.log.open("ab") as log:
            self.process = template().fork(self.words, log.fileno())
        self.expected_to_die = False

    def wait_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return as soon as grpc.health.v1 says SERVING."""
        wait_until(self.serving, f"{self.name} is serving", timeout_s=timeout_s, check=self._check_alive)

    def serving(self) -> bool:
        """Does its health service say so?"""
        with self.channel() as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=2, wait_for_ready=True
                )
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def channel(self) -> grpc.Channel:
        """To its gRPC server; carries no credential of its caller but a certificate."""
        options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
        if self.trust is None:
            return grpc.insecure_channel(self.address, options)
        return grpc.secure_channel(self.address, self.trust.credentials, [*options, *self.trust.options])

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

    def restart(self) -> None:
        """SIGKILL, and start it again; `wait_serving` says when it is back."""
        self.kill()
        self.start()

    def drain(self) -> None:
        """SIGTERM, and wait until it has stopped, as it must, by itself."""
        self.terminate()
        problem = self.finish()
        assert not problem, problem

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

    def metrics(self, timeout_s: float = 10) -> dict[str, float]:
        """What its /metrics says now: `name{label=value,...}` -> value, zeros included."""
        context = self.trust.context() if self.trust is not None else True
        answer = httpx.get(f"{self.page}/metrics", trust_env=False, timeout=timeout_s, verify=context)
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


def total(values: Mapping[str, float], name: str, **labels: str) -> float:
    """Sum over one sample name, of those with these labels."""
    wanted = {f"{label}={value}" for label, value in labels.items()}
    return sum(
        value
        for key, value in values.items()
        if key.partition("{")[0] == name and wanted <= set(key.partition("{")[2].rstrip("}").split(","))
    )


def group_of(process: psutil.Process) -> int | None:
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
