"""Certificates of links: checked at start, read again when their files change."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from outrider.config.files import Reloaded, read_bytes
from outrider.config.schema import TlsConfig
from outrider.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pem:
    """The files' content; what is not configured is empty."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes


class Tls:
    """The certificates of one kind of link."""

    def __init__(self, config: TlsConfig, section: str) -> None:
        """`section` is its place in the configuration, for messages.

        Raises:
            ConfigError: a file cannot be read, or holds something else.
        """
        self.config = config
        self.section = section
        paths = [Path(text) for text in (config.certificate, config.key, config.ca) if text]
        self._files = Reloaded(paths, self._read, section)

    @property
    def pem(self) -> Pem:
        """What the files hold now; the same object until they change."""
        return self._files.current()

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a server: each handshake uses what the files hold then.

        Raises:
            ConfigError: no certificate is configured.
        """
        self.need_certificate()
        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(self.pem),
            lambda: _server_configuration(self.pem),
            require_client_authentication=bool(self.config.ca),
        )

    def need_certificate(self) -> None:
        """Raises ConfigError: a server cannot be had without one."""
        if not self.config.certificate:
            raise ConfigError(f"{self.section}.ca is set, but a server needs a certificate and its key too")

    def _read(self) -> Pem:
        config = self.config
        return Pem(self._certificate(), _content(config.key, f"{self.section}.key"), self._authorities())

    def _certificate(self) -> bytes:
        """The chain; its key is checked to be the other half."""
        config, where = self.config, f"{self.section}.certificate"
        if not config.certificate:
            return b""
        chain = read_bytes(Path(config.certificate), where)
        _content(config.key, f"{self.section}.key")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                config.certificate, config.key, password=_no_password
            )
        except OSError as error:  # SSLError is one
            raise ConfigError(
                f"{where}: {config.certificate} and {config.key} are no certificate with its key: {error}"
            ) from None
        return chain

    def _authorities(self) -> bytes:
        pem = _content(self.config.ca, f"{self.section}.ca")
        if pem:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                raise ConfigError(
                    f"{self.section}.ca: {self.config.ca} holds no certificates: {error}"
                ) from None
        return pem


def channel_credentials(pem: Pem | None) -> grpc.ChannelCredentials:
    """Credentials of a client that has `pem`; without authorities of its own it trusts the system's."""
    if pem is None:
        return grpc.ssl_channel_credentials()
    return grpc.ssl_channel_credentials(pem.ca or None, pem.key or None, pem.certificate or None)


def _content(path: str, what: str) -> bytes:
    return read_bytes(Path(path), what) if path else b""


def _no_password() -> str:
    """Else OpenSSL would ask the terminal for one."""
    raise ConfigError("a private key must not be encrypted: nobody is there to type its password")


def _server_configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca or None)
