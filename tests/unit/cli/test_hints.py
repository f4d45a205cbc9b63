"""An error of a connection says what to do about it."""

from __future__ import annotations

import pytest

from outrider.cli.hints import hint


@pytest.mark.parametrize(
    ("text", "say"),
    [
        ("Custom verification check failed with error: Hostname Verification Check failed.", "--server-name"),
        ("SSL_ERROR_SSL: error:1000007d: CERTIFICATE_VERIFY_FAILED: unable to get local issuer", "--ca FILE"),
        ("Tls handshake failed: WRONG_VERSION_NUMBER", "speaks no TLS"),
        ("UNIMPLEMENTED: Failed parsing HTTP/2 (Expected SETTINGS frame", "no gRPC port"),
        ("UNAVAILABLE: ipv4:127.0.0.1:9000: Socket closed", "--tls"),
        ("errors resolving nowhere:9000", "HOST:PORT"),
        ("Failed to connect to remote host: Connection refused", "outrider serve"),
    ],
)
def test_what_kept_a_connection_from_standing_says_which_option_helps(text: str, say: str) -> None:
    assert say in hint("gateway:9000", text)


def test_a_url_in_place_of_an_address_is_named() -> None:
    assert "without ://" in hint("http://127.0.0.1:9000", "errors resolving http://127.0.0.1:9000")
