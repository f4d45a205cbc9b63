"""The command `outrider deploy`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.deploying.environment import CLUSTERS, prepare
from outrider.core.errors import ConfigError

FileArgument = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.yaml]", help="a Serve configuration file", dir_okay=False)
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="the Ray cluster: URL of its dashboard (http://HOST:8265), HOST:PORT of its head, or auto"
    ),
]
TimeoutOption = Annotated[
    float, typer.Option(min=1.0, help="seconds until all must run: nodes fetch and load models in that time")
]
GraceOption = Annotated[
    float | None,
    typer.Option(min=0.0, help="without a cluster: seconds that stopping may take; default as in `serve`"),
]


def deploy(
    file: FileArgument = None,
    address: AddressOption = None,
    local: Annotated[
        bool, typer.Option("--local", help="start a Ray of its own here, even if there is a cluster")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="only say what is wrong with the file")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="say what runs; exit status 1 unless all of it does")
    ] = False,
    down: Annotated[bool, typer.Option("--down", help="remove what was deployed")] = False,
    json_ready: Annotated[
        bool, typer.Option("--json-ready", help="say what is ready as JSON, with the pid of each replica")
    ] = False,
    timeout: TimeoutOption = 1800.0,
    grace: GraceOption = None,
) -> None:
    """Run a Ray Serve configuration file, once all of it was checked.

    On a cluster (--address, or what RAY_DASHBOARD_ADDRESS, RAY_ADDRESS or `ray start` on this machine say) it
    waits until all runs, prints the addresses and returns. Without one it starts Ray on this machine alone,
    and serves until SIGTERM or Ctrl-C.
    """
    if check + status + down > 1:
        raise ConfigError("--check, --status and --down exclude each other")
    if (file is None) != (status or down):
        raise ConfigError(
            "--status and --down take no file" if status or down else "a Serve configuration file is missing"
        )
    if local and address is not None:
        raise ConfigError("--local and --address exclude each other")
    prepare(file, local=local or not (address or any(map(os.environ.get, CLUSTERS)) or file is None))
    _need_ray()
    from outrider.cli.deploying import commands

    if file is None:
        if down:
            commands.down(address)
        elif not commands.status(address):
            raise typer.Exit(1)
    elif check:
        commands.check(file)
    else:
        commands.deploy(file, commands.Wishes(address, local, json_ready, timeout, grace))


def _need_ray() -> None:
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"Ray Serve is not installed ({error}): pip install 'outrider[ray]'") from None
