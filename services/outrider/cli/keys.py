"""`outrider keys`: the API keys of gateways."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from outrider.cli.console import err, out
from outrider.config import load_config
from outrider.core.errors import ConfigError, InvalidRequestError
from outrider.gateway.auth.entries import KeyEntry, KeyLimits, check_entries, hash_of, new_key
from outrider.gateway.auth.key_file import change_keys, read_keys

SHOWN_HASH = 12
"""Characters of a hash by which people tell keys apart."""

app = typer.Typer(help="API keys of gateways.", no_args_is_help=True)

FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="file of keys; default: security.api_keys_file", dir_okay=False),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="configuration that names the file", dir_okay=False)
]


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="whose key it is; several keys may have the same name")],
    file: FileOption = None,
    config: ConfigOption = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="generations at once")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="prompts and answers together")] = None,
    expires: Annotated[
        str | None, typer.Option(help="from when on it is refused, such as 2027-01-31 or 2027-01-31T12:00Z")
    ] = None,
) -> None:
    """Make a key, print it once, and enter its hash. Running gateways accept it at once.

    Without limits a further key of the same name gets those that the name has. Limits hold for each
    gateway by itself.
    """
    path, key = _path(file, config), new_key()
    given = {
        "max_concurrent": max_concurrent,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }

    def added(entries: Sequence[KeyEntry]) -> list[KeyEntry]:
        limits = KeyLimits(**given)
        if limits == KeyLimits():
            limits = next((entry.limits for entry in entries if entry.name == name), limits)
        entry = {"name": name, "hash": hash_of(key), "limits": limits, "expires": expires}
        return [*entries, *_checked(entry)]

    change_keys(path, added)
    err.print(f"entered in {path}; the key is shown only this once:", soft_wrap=True)
    sys.stdout.write(key + "\n")


@app.command("list")
def list_keys(file: FileOption = None, config: ConfigOption = None) -> None:
    """Show names, hashes and limits. Keys themselves are stored nowhere."""
    table = Table("name", "hash", "at once", "requests/min", "tokens/min", "expires")
    now = datetime.now(UTC)
    for entry in read_keys(_existing(file, config)):
        limits = (
            entry.limits.max_concurrent,
            entry.limits.requests_per_minute,
            entry.limits.tokens_per_minute,
        )
        table.add_row(
            entry.name,
            entry.hash[:SHOWN_HASH],
            *("-" if limit is None else str(limit) for limit in limits),
            _expiry(entry, now),
        )
    out.print(table)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="whose keys")],
    file: FileOption = None,
    config: ConfigOption = None,
    hash_prefix: Annotated[
        str, typer.Option("--hash", help="only the key whose hash begins so; see `outrider keys list`")
    ] = "",
) -> None:
    """Take keys away. Running gateways refuse them at once; generations that run are not ended."""
    path = _existing(file, config)
    gone: list[KeyEntry] = []

    def without(entries: Sequence[KeyEntry]) -> list[KeyEntry]:
        gone[:] = [
            entry for entry in entries if entry.name == name and entry.hash.startswith(hash_prefix.lower())
        ]
        if not gone:
            raise InvalidRequestError(f"there is no such key of {name!r} in {path}")
        return [entry for entry in entries if entry not in gone]

    read_keys(path)
    change_keys(path, without)
    hashes = ", ".join(entry.hash[:SHOWN_HASH] for entry in gone)
    err.print(f"revoked {len(gone)} of {name} in {path}: {hashes}", soft_wrap=True)


def _path(file: Path | None, config: Path | None) -> Path:
    """The file to work on.

    Raises:
        ConfigError: nothing names one.
    """
    if file is not None:
        return file
    if named := load_config(config).security.api_keys_file:
        return Path(named)
    raise ConfigError("say which file: --file, or --config with security.api_keys_file set")


def _checked(entry: dict[str, Any]) -> tuple[KeyEntry, ...]:
    try:
        return check_entries([entry], "")
    except ConfigError as error:
        raise ConfigError(str(error).replace(": entry 1 ", "", 1)) from None


def _existing(file: Path | None, config: Path | None) -> Path:
    """The file to work on, which is there.

    Raises:
        ConfigError: nothing names one, or it is not there.
    """
    path = _path(file, config)
    if not path.exists():
        raise ConfigError(f"there is no {path}; `outrider keys new NAME --file {path}` makes it")
    return path


def _expiry(entry: KeyEntry, now: datetime) -> str:
    if entry.expires is None:
        return "-"
    text = f"{entry.expires.astimezone(UTC):%Y-%m-%d %H:%MZ}"
    return f"{text} (expired)" if entry.has_expired(now) else text
