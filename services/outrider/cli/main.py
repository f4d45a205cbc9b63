"""The `outrider` command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider import __version__
from outrider.cli import logging
from outrider.cli.connecting import (
    ApiKeyOption,
    CaOption,
    CertificateOption,
    KeyOption,
    ServerNameOption,
    connection_to,
)
from outrider.cli.console import err
from outrider.cli.deploy import deploy
from outrider.cli.generate import generate
from outrider.cli.keys import app as keys_app
from outrider.cli.models import app as models_app
from outrider.cli.service import die_with_supervisor, run_service
from outrider.config import OutriderConfig, dump_config, load_config, without_secrets
from outrider.core.errors import OutriderError

if TYPE_CHECKING:
    from outrider.client import Connection

app = typer.Typer(
    name="outrider",
    help="Serves large language models with speculative decoding: drafters propose, a verifier decides.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="The configuration that a command would run with.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
app.add_typer(models_app, name="models")
app.add_typer(config_app, name="config")


ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="YAML file; without one: the demo stack", dir_okay=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="change one value, such as verifier.dtype=float32; may be repeated",
    ),
]


def _load(config: Path | None, overrides: list[str] | None) -> OutriderConfig:
    loaded = load_config(config, overrides or ())
    logging.set_up(loaded.telemetry.log_level)
    return loaded


@app.command()
def serve(
    config: ConfigOption = None,
    overrides: SetOption = None,
    json_ready: Annotated[
        bool, typer.Option("--json-ready", help="say what is ready as JSON, with the pid of each service")
    ] = False,
    grace: Annotated[
        float | None,
        typer.Option(min=0.0, help="seconds that stopping may take; by default 8 and verifier.drain_s"),
    ] = None,
    verifiers: Annotated[
        int, typer.Option(min=1, help="how many: sessions of one that dies go on at another")
    ] = 1,
) -> None:
    """Run a whole stack on this machine: drafters, verifier, gateway, each a process.

    Prints one line when all are ready and runs until SIGTERM or Ctrl-C. A service that dies is
    started again.
    """
    from outrider.cli.serve import serve as serve_stack

    serve_stack(_load(config, overrides), json_ready=json_ready, grace_s=grace, verifiers=verifiers)


@app.command()
def verifier(config: ConfigOption = None, overrides: SetOption = None) -> None:
    """Run one verifier. Prints a line of JSON with its address when it is ready."""
    loaded = _load(config, overrides)
    from outrider.cli.ranks import LocalRanks
    from outrider.verifying.server import serve as serve_verifier

    ranks = LocalRanks(loaded.telemetry.log_level)
    run_service(
        "verifier", lambda ready, stop: serve_verifier(loaded, ready=ready, stop=stop, launcher=ranks)
    )


@app.command(hidden=True)
def rank() -> None:
    """Run one rank of a tensor-parallel verifier, which starts it and tells it its task on standard input."""
    from outrider.cli.ranks import run_follower

    run_follower(sys.stdin.read())


@app.command()
def drafter(
    name: Annotated[str, typer.Argument(help="a key of `drafters` in the configuration")],
    config: ConfigOption = None,
    overrides: SetOption = None,
) -> None:
    """Run one drafter. Prints a line of JSON with its address when it is ready."""
    loaded = _load(config, overrides)
    from outrider.drafting.server import serve as serve_drafter

    run_service(f"drafter:{name}", lambda ready, stop: serve_drafter(loaded, name, ready=ready, stop=stop))


@app.command()
def gateway(config: ConfigOption = None, overrides: SetOption = None) -> None:
    """Run one gateway. Prints a line of JSON with its addresses when it is ready."""
    loaded = _load(config, overrides)
    from outrider.gateway.server import serve as serve_gateway

    run_service("gateway", lambda ready, stop: serve_gateway(loaded, ready=ready, stop=stop))


app.command()(deploy)
app.command()(generate)


@app.command()
def demo(
    config: ConfigOption = None,
    overrides: SetOption = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="tokens of each answer")] = 64,
    repeats: Annotated[
        int, typer.Option(min=1, help="how often each is measured, in turns, if time allows")
    ] = 5,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    api_key: ApiKeyOption = "",
    ca: CaOption = None,
    certificate: CertificateOption = None,
    key: KeyOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Answer three prompts on the demo model, then compare drafters with speculation off.

    With `security.public_tls` the demo encrypts: it trusts --ca, else the system's authorities.

    Exit status 1 if any output differs from the one without speculation.
    """
    from outrider.cli.demo import Demo, run_demo

    loaded = _load(config, overrides)
    demo = Demo(max_tokens, repeats, temperature, seed)

    def connection(address: str) -> Connection:
        return connection_to(
            address,
            api_key=api_key,
            tls=bool(loaded.security.public_tls.certificate),
            ca=ca,
            certificate=certificate,
            key=key,
            server_name=server_name or loaded.security.public_tls.server_name,
        )

    if not run_demo(loaded, demo, connection):
        raise typer.Exit(1)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def bench(context: typer.Context) -> None:
    """Measure speculation on against off, interleaved, on your prompts."""
    from outrider.benchmark.cli import bench as command

    measuring = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    measuring.command()(command)
    measuring(args=context.args, prog_name="outrider bench")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def train(context: typer.Context) -> None:
    """Train drafters on what the target writes, and measure them."""
    from outrider.training.cli import app as training

    training(args=context.args, prog_name="outrider train")


@config_app.command("show")
def show(
    config: ConfigOption = None,
    overrides: SetOption = None,
    secrets: Annotated[bool, typer.Option("--secrets", help="print passwords too")] = False,
) -> None:
    """Print the whole configuration, defaults included, as YAML; passwords in URLs are masked."""
    loaded = load_config(config, overrides or ())
    sys.stdout.write(dump_config(loaded if secrets else without_secrets(loaded)))


@config_app.command("schema")
def schema() -> None:
    """Print the JSON schema of the configuration, for editors and checks."""
    sys.stdout.write(json.dumps(OutriderConfig.model_json_schema(), indent=2) + "\n")


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"outrider {__version__}\n")


def main() -> None:
    """Run the command; an error of ours becomes one line and exit status 1."""
    die_with_supervisor()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core repeats for each attempt what errors say
    try:
        app()
    except OutriderError as error:
        err.print(f"[bold red]error:[/] {_escaped(str(error))}", soft_wrap=True)
        raise SystemExit(1) from None


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


if __name__ == "__main__":
    main()
