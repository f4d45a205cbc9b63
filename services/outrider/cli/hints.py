"""What to do when a gateway does not answer, by what gRPC says of the connection."""

from __future__ import annotations

_HINTS = (
    (("Hostname Verification Check failed",), "say the name in the gateway's certificate: --server-name"),
    (("CERTIFICATE_VERIFY_FAILED",), "say whose certificates to trust: --ca FILE"),
    (("WRONG_VERSION_NUMBER",), "this port speaks no TLS: leave --tls, --ca, --certificate and --key out"),
    (("CERTIFICATE_REQUIRED",), "the gateway asks for a certificate: --certificate and --key"),
    (
        ("http1.x server", "Failed parsing HTTP/2"),
        "this is no gRPC port, but perhaps the HTTP one: --url takes the one named by grpc=",
    ),
    (
        ("Socket closed", "Connection reset"),
        "does this port speak TLS (--ca FILE, or --tls), or ask for a certificate (--certificate, --key)?",
    ),
    (("resolving", "address lookup"), "--url is HOST:PORT of the gateway's gRPC API"),
)
_OTHERWISE = "is `outrider serve` running?"


def hint(address: str, text: str) -> str:
    """For the error `text` of a call to the gateway at `address`."""
    if "://" in address:
        return "--url is HOST:PORT of the gateway's gRPC API, without ://"
    return next((say for marks, say in _HINTS if any(mark in text for mark in marks)), _OTHERWISE)
