"""Credentials of a client, from PEM files."""

from __future__ import annotations

from pathlib import Path

import grpc

from outrider.core.errors import ConfigError


def tls_credentials(
    ca: Path | str | None = None, certificate: Path | str | None = None, key: Path | str | None = None
) -> grpc.ChannelCredentials:
    """For `Connection.credentials`. The files are read now, and not again.

    Args:
        ca: authorities that the gateway's certificate may be of; None: the system's.
        certificate: this client's own chain, where the gateway asks for one.
        key: its private key.

    Raises:
        ConfigError: a file cannot be read, or a certificate comes without key or the other way round.
    """
    if (certificate is None) != (key is None):
        raise ConfigError("certificate and key go together: one of them is not given")
    return grpc.ssl_channel_credentials(_content(ca), _content(key), _content(certificate))


def _content(path: Path | str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
