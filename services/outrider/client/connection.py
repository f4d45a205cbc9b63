"""What both clients have in common: channel options, retries, credentials, deadlines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import grpc

from outrider.core.errors import ConfigError
from outrider.wire import metadata
from outrider.wire.services import GENERATION

GENERATE_TIMEOUT_S = 600.0
CALL_TIMEOUT_S = 30.0
"""Deadline of calls that generate nothing."""
MAX_ATTEMPTS = 5
"""Of a call, the first one included; gRPC allows no more."""
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
KEEPALIVE_MS = 30_000
"""While a call runs: a gateway whose machine is gone is noticed long before the deadline."""
KEEPALIVE_TIMEOUT_MS = 10_000

# gRPC tries again only while nothing of an answer has come, so never after a token: `course` says what
# follows then. Cancel may be repeated at any time. A gateway that is full (RESOURCE_EXHAUSTED) says itself
# when to come back.
_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": GENERATION}],
            "retryPolicy": {
                "maxAttempts": MAX_ATTEMPTS,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a gateway, or several that serve the same."""

    address: str | tuple[str, ...]  # host:port of each gRPC API, in the order in which they are tried
    credentials: grpc.ChannelCredentials | None = None  # None: plaintext; see tls_credentials
    api_key: str = field(default="", repr=False)  # sent as "authorization: Bearer ..."
    retry: bool = True  # calls that a gateway refuses as UNAVAILABLE before it answers
    resume: bool = True  # go on, at the next gateway, with a generation whose stream broke
    proxy: bool = False  # go through the proxy that the environment names (http_proxy, no_proxy)
    server_name: str = ""  # name in the gateway's certificate, where the address is not it
    application: str = ""  # name of the Ray Serve application, where one address serves several

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ConfigError("a connection needs at least one address")

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of them."""
        return (self.address,) if isinstance(self.address, str) else tuple(self.address)

    def options(self) -> list[tuple[str, int | str]]:
        """Channel options."""
        name = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return [
            *name,
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.enable_retries", int(self.retry)),
            ("grpc.service_config", json.dumps(_SERVICE_CONFIG if self.retry else {})),
            ("grpc.enable_http_proxy", int(self.proxy)),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of each call."""
        key = f"Bearer {self.api_key}" if self.api_key else ""
        return metadata.pairs(authorization=key, application=self.application)
