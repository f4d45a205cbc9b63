"""How links of one kind are protected: certificates, and a credential that calls carry."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from outrider.config.schema import SecurityConfig
from outrider.wire.cluster import ClusterToken
from outrider.wire.tls import Tls


@dataclass(frozen=True, slots=True)
class Protection:
    """What protects the links of one kind. Holds files that are read again, so make one for a process."""

    tls: Tls | None = None  # None: plaintext
    token: ClusterToken | None = None  # None: whoever calls is served
    section: str = ""  # where TLS is configured, for people

    @property
    def server_name(self) -> str:
        """Name that peers' certificates bear; empty: their address."""
        return self.tls.config.server_name if self.tls else ""


PLAIN = Protection()
"""Plaintext, and no questions asked."""


def internal_protection(config: SecurityConfig) -> Protection:
    """Of links between gateways, verifiers and drafters.

    Raises:
        ConfigError: a file cannot be read, or holds something else.
    """
    section = "security.internal_tls"
    token = ClusterToken(config.cluster_token_file) if config.cluster_token_file else None
    return Protection(_tls(config, section), token, section)


def public_protection(config: SecurityConfig) -> Protection:
    """Of the gateway's own APIs. API keys are the gateway's to check.

    Raises:
        ConfigError: a file cannot be read, or holds something else.
    """
    section = "security.public_tls"
    return Protection(_tls(config, section), None, section)


def exposed(host: str) -> bool:
    """Whether others than this machine reach a server that listens at `host`."""
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return True


def _tls(config: SecurityConfig, section: str) -> Tls | None:
    tls = config.internal_tls if section.endswith("internal_tls") else config.public_tls
    return Tls(tls, section) if tls.certificate or tls.ca else None
