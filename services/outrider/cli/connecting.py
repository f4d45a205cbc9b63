"""Options of commands that call a gateway: API key and TLS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outrider.client import Connection

_TLS = "TLS"

ApiKeyOption = Annotated[
    str, typer.Option(envvar="OUTRIDER_API_KEY", help="key for the gateway; better in the environment")
]
TlsOption = Annotated[
    bool,
    typer.Option("--tls", help="encrypt; the system's authorities are trusted", rich_help_panel=_TLS),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        help="encrypt; authorities of the gateway's certificate, PEM", dir_okay=False, rich_help_panel=_TLS
    ),
]
CertificateOption = Annotated[
    Path | None, typer.Option(help="own certificate chain, PEM", dir_okay=False, rich_help_panel=_TLS)
]
KeyOption = Annotated[Path | None, typer.Option(help="its key, PEM", dir_okay=False, rich_help_panel=_TLS)]
ServerNameOption = Annotated[
    str, typer.Option(help="name in the gateway's certificate, if not its address", rich_help_panel=_TLS)
]


def connection_to(
    address: str,
    *,
    api_key: str,
    tls: bool,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    server_name: str,
) -> Connection:
    """What these options say.

    Raises:
        ConfigError: a file cannot be read, or a certificate comes without key or the other way round.
    """
    from outrider.client import Connection, tls_credentials

    encrypted = tls or ca is not None or certificate is not None or key is not None
    return Connection(
        address,
        credentials=tls_credentials(ca, certificate, key) if encrypted else None,
        api_key=api_key,
        server_name=server_name,
    )
