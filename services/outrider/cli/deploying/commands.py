"""`outrider deploy`: run a Serve configuration file on a Ray cluster, or on one of this machine alone."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ray.serve.schema import ServeInstanceDetails

from outrider.cli.console import FetchProgress, err, out, say
from outrider.cli.deploying.addresses import Addresses, addresses_of, replicas_of
from outrider.cli.deploying.cluster import Cluster, RemoteCluster, find_cluster
from outrider.cli.deploying.here import check_fits, check_ports
from outrider.cli.deploying.local import local_cluster
from outrider.cli.deploying.models import check_models, check_models_here
from outrider.cli.deploying.progress import Progress, wait_gone, wait_running
from outrider.cli.deploying.status import rows_of, table_of
from outrider.cli.stack import stop_time
from outrider.core.errors import ConfigError, UnavailableError
from outrider.rayserve.serve_file import ServeFile, is_ours, load_serve_file

WATCH_S = 2.0
"""Between two looks at an application that runs."""
DELETE_S = 900.0
"""For applications to end: a gateway waits for its open streams for `gateway.request_timeout_s`."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Options of the command."""

    address: str | None
    local: bool
    json_ready: bool
    timeout_s: float
    grace_s: float | None


def check(path: Path) -> None:
    """`--check`: only say what is wrong with the file."""
    file = load_serve_file(path)
    check_models(file)
    names = ", ".join(application.name for application in file.ours)
    say(f"{path}: nothing is wrong with {names}")


def deploy(path: Path, wishes: Wishes) -> None:
    """Run the file: on a cluster, if there is one, and return; else here, until a signal."""
    file = load_serve_file(path)
    url = None if wishes.local else find_cluster(wishes.address)
    if url is None:
        _run_here(file, wishes)
        return
    check_models(file)
    cluster = RemoteCluster(url)
    before = cluster.details()
    _say_what_goes(before, file)
    cluster.apply(file.data)
    try:
        details = wait_running(cluster, _names(file), before=before, timeout_s=wishes.timeout_s)
    except KeyboardInterrupt:
        err.print("the cluster goes on with it: see `outrider deploy --status`")
        raise
    assert details is not None
    _say_ready(addresses_of(details, file), details, file, wishes, url)


def status(address: str | None) -> bool:
    """`--status`: a table of what runs; whether all of it does."""
    details = _found(address).details()
    ours = _ours(details)
    rows = rows_of(details, ours)
    if not rows:
        say("no application of Outrider is deployed there")
    elif out.is_terminal:
        out.print(table_of(rows))
    else:
        for row in rows:
            say(row.line)
    return bool(rows) and all(details.applications[name].status == "RUNNING" for name in ours)


def down(address: str | None) -> None:
    """`--down`: remove our applications, and Serve too if there are no others."""
    cluster = _found(address)
    details = cluster.details()
    ours = _ours(details)
    others = [name for name in details.applications if name not in ours]
    if ours:
        cluster.apply(_without(details, ours))
        if not wait_gone(cluster, ours, timeout_s=DELETE_S):
            raise UnavailableError(f"not gone after {DELETE_S:g} s: {', '.join(ours)}")
    if not others:
        cluster.shut_down()
    say(f"removed {', '.join(ours)}" if ours else "no application of Outrider was there")


def _run_here(file: ServeFile, wishes: Wishes) -> None:
    check_ports(file)
    with _Told() as told:
        with FetchProgress() as progress:
            check_models_here(file, progress)
        with local_cluster() as cluster:
            told.listen()  # Ray has listened itself
            check_fits(file, cluster.resources())
            try:
                _serve_here(cluster, file, wishes, told, cluster.dashboard)
            finally:
                told.listen()
                grace_s = (
                    stop_time(file.ours[0].arguments.config) if wishes.grace_s is None else wishes.grace_s
                )
                _stop(cluster, file, grace_s, hurry=lambda: told.times > 1)


def _serve_here(cluster: Cluster, file: ServeFile, wishes: Wishes, told: _Told, dashboard: str) -> None:
    before = cluster.details()
    cluster.apply(file.data)
    names = _names(file)
    details = wait_running(
        cluster, names, before=before, timeout_s=wishes.timeout_s, stopped=lambda: told.times > 0
    )
    if details is None:
        return
    _say_ready(addresses_of(details, file), details, file, wishes, dashboard)
    with Progress(names, lines=True) as progress:
        progress.remember(details)
        while not told.times:
            details = cluster.details()
            progress.show(details)
            if not set(names) & set(details.applications):
                err.print("somebody has removed it: there is nothing left to serve")
                return
            told.wait(WATCH_S)


def _stop(cluster: Cluster, file: ServeFile, grace_s: float, hurry: Callable[[], bool]) -> None:
    if not cluster.details().applications:
        return
    cluster.apply(file.data | {"applications": []})
    if not wait_gone(cluster, _names(file), timeout_s=grace_s, hurry=hurry):
        err.print("not all of it stopped in time, the rest is killed")


def _found(address: str | None) -> RemoteCluster:
    url = find_cluster(address)
    if url is None:
        raise UnavailableError("no Ray cluster was found on this machine: say where it is with --address")
    return RemoteCluster(url)


def _names(file: ServeFile) -> list[str]:
    return [application.name for application in file.schema.applications]


def _ours(details: ServeInstanceDetails) -> list[str]:
    return [
        name
        for name, one in details.applications.items()
        if one.deployed_app_config is not None and is_ours(one.deployed_app_config.import_path)
    ]


def _without(details: ServeInstanceDetails, names: list[str]) -> dict[str, object]:
    """What Serve runs now, without these."""
    kept = {name: one for name, one in details.applications.items() if name not in names}
    unknown = [name for name, one in kept.items() if one.deployed_app_config is None]
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} was not deployed from a configuration file, and would go too: "
            "remove the applications that are to go with Serve's own means"
        )
    configs = [one.deployed_app_config for one in kept.values() if one.deployed_app_config is not None]
    config: dict[str, object] = {
        "applications": [one.model_dump(mode="json", exclude_unset=True) for one in configs]
    }
    if details.proxy_location is not None:
        config["proxy_location"] = details.proxy_location.value
    for name, options in (("http_options", details.http_options), ("grpc_options", details.grpc_options)):
        if options is not None:
            config[name] = options.model_dump(mode="json", exclude_none=True)
    return config


def _say_what_goes(before: ServeInstanceDetails, file: ServeFile) -> None:
    """A Serve configuration is the whole of what is to run: what it leaves out is removed."""
    gone = sorted(set(before.applications) - set(_names(file)))
    if gone:
        err.print(f"removes {', '.join(gone)}: {file.source} does not have it", markup=False)
    for name, now, wanted in (
        ("http_options", before.http_options, file.schema.http_options),
        ("grpc_options", before.grpc_options, file.schema.grpc_options),
    ):
        if now is not None and now != wanted:
            err.print(f"{name} stay as they are until Serve is shut down there", markup=False)


def _say_ready(
    addresses: Addresses, details: ServeInstanceDetails, file: ServeFile, wishes: Wishes, dashboard: str
) -> None:
    if wishes.json_ready:
        line = {
            "event": "ready",
            "http": addresses.http,
            "grpc": addresses.grpc,
            "pid": os.getpid(),
            "dashboard": dashboard,
            "replicas": replicas_of(details, _names(file)),
        }
        say(json.dumps(line))
        return
    grpc = f" grpc={addresses.grpc}" if addresses.grpc else ""
    say(f"outrider ready http={addresses.http}{grpc} dashboard={dashboard}")


class _Told:
    """Counts the signals that tell us to stop; one before `listen` raises SystemExit. A context manager."""

    def __init__(self) -> None:
        self.times = 0
        self._numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._before = {number: signal.getsignal(number) for number in self._numbers}

    def __enter__(self) -> _Told:
        for number in self._numbers:
            signal.signal(number, self._end)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Count from now on."""
        for number in self._numbers:
            signal.signal(number, self._count)

    def wait(self, seconds: float) -> None:
        """Until the next signal, if it comes by then."""
        deadline, times = time.monotonic() + seconds, self.times
        while self.times == times and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.times += 1

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)
