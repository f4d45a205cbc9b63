"""What a gateway behind Serve's proxies cannot do, and the methods that these are told of."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from outrider.config import OutriderConfig
from outrider.core.errors import ConfigError
from outrider.rayserve.gateway import Gateway, check
from outrider.rayserve.servicing import add_generation
from outrider.wire.v1 import generation_pb2 as pb


@pytest.mark.parametrize("tls", [{"certificate": "a.pem", "key": "a.key"}, {"ca": "ca.pem"}])
def test_tls_that_nobody_would_speak_is_refused(tls: dict[str, str]) -> None:
    config = OutriderConfig.model_validate({"security": {"public_tls": tls}})
    with pytest.raises(
        ConfigError, match=r"security\.public_tls has no effect under Ray Serve.*ssl_certfile"
    ):
        check(config)


def test_tls_between_services_is_not() -> None:
    tls = {"internal_tls": {"certificate": "a.pem", "key": "a.key", "ca": "ca.pem"}}
    check(OutriderConfig.model_validate({"security": tls}))


class Server:
    """Keeps what is registered with it."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        self.handlers += handlers


def test_the_proxy_knows_every_method_and_reads_no_request() -> None:
    server = Server()
    add_generation(None, server)  # type: ignore[arg-type]
    (registered,) = server.handlers
    methods = pb.DESCRIPTOR.services_by_name["Generation"].methods
    for method in methods:
        details: Any = type("Details", (), {"method": f"/outrider.v1.Generation/{method.name}"})
        handler: grpc.RpcMethodHandler[Any, Any] | None = registered.service(details)
        assert handler is not None, method.name
        assert not handler.request_streaming
        assert handler.response_streaming == method.server_streaming
        assert handler.request_deserializer is not None
        assert handler.request_deserializer(b"\xff") == b"\xff"
        assert hasattr(Gateway, method.name), "Serve calls the method of the same name"
