"""`outrider serve`: a whole stack on this machine, each service a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from outrider.cli.console import FetchProgress, err, say
from outrider.cli.stack import GATEWAY, VERIFIER, child_env, need_models, service_specs, stop_time, with_ports
from outrider.cli.supervisor import Running, Supervisor
from outrider.config import OutriderConfig

Services = Mapping[str, Running]


def serve(config: OutriderConfig, *, json_ready: bool, grace_s: float | None, verifiers: int = 1) -> None:
    """Run the stack until SIGTERM, SIGINT or SIGHUP; see `outrider serve --help`."""
    with _terminable(), FetchProgress() as progress:
        need_models(config, progress)
    with service_specs(with_ports(config, verifiers), verifiers) as specs:
        supervisor = Supervisor(
            specs,
            child_env(),
            log_line,
            on_restart=_say_restarted if json_ready else None,
            grace_s=stop_time(config) if grace_s is None else grace_s,
        )
        asyncio.run(run_until_signal(supervisor, _say_ready_json if json_ready else _say_ready))


async def run_until_signal(supervisor: Supervisor, on_ready: Callable[[dict[str, Running]], None]) -> None:
    """Run until told to stop by a signal; a second one kills what is still running."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            supervisor.kill()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    await supervisor.run(stop, on_ready)


def addresses_of(services: Services) -> tuple[str, str]:
    """HTTP URL and gRPC address at which the stack is reached."""
    gateway = services[GATEWAY].addresses
    http = gateway["http"]
    return (http if "://" in http else f"http://{http}"), gateway["grpc"]


def log_line(service: str, line: str) -> None:
    """Pass a line of a service's log on, with the service's name before it."""
    if err.is_terminal:
        err.print(f"[{_colour(service)}]{service:>21}[/] ", end="")
    else:
        sys.stderr.write(f"[{service}] ")
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _say_ready(services: Services) -> None:
    http, grpc = addresses_of(services)
    verifiers = [f"{name}={one.pid}" for name, one in services.items() if name.startswith(f"{VERIFIER}-")]
    pids = f" pids: {' '.join(verifiers)}" if verifiers else ""
    say(f"outrider ready http={http} grpc={grpc}{pids}")


def _say_ready_json(services: Services) -> None:
    http, grpc = addresses_of(services)
    table = {name: {"pid": running.pid, **running.addresses} for name, running in services.items()}
    say(json.dumps({"event": "ready", "http": http, "grpc": grpc, "pid": os.getpid(), "services": table}))


def _say_restarted(running: Running) -> None:
    say(json.dumps({"event": "restarted", "service": running.name, "pid": running.pid}))


def _colour(service: str) -> str:
    return {"gateway": "cyan", "verifier": "green"}.get(service.partition("-")[0], "yellow")


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as an exception, so that an interrupted fetch cleans up and takes its children along."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
