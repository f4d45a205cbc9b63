#!/opt/outrider/bin/python
"""Exit status 0 if a service says that it is well. The health check of the images.

    outrider-health [http://HOST:PORT/health | grpc://HOST:PORT]

Without an argument: $OUTRIDER_HEALTH, else the gateway on this machine. Over TLS (https, grpcs) --ca and
--server-name say whom to trust; with --certificate and --key a certificate is shown. A certificate for
https is not checked without --ca: this asks a process on the same machine.
"""

from __future__ import annotations

import argparse
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

TIMEOUT_S = 5
DEFAULT = "http://127.0.0.1:8000/health"


def trouble_over_http(url: str, arguments: argparse.Namespace) -> str:
    """Why the answer is no good; empty: it is 200."""
    context = ssl.create_default_context(cafile=arguments.ca)
    if arguments.ca is None or arguments.server_name:
        context.check_hostname = False
    if arguments.ca is None:
        context.verify_mode = ssl.CERT_NONE
    if arguments.certificate:
        context.load_cert_chain(arguments.certificate, arguments.key)
    # A proxy of the environment is not meant for this.
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT_S):
            return ""
    except (OSError, urllib.error.URLError) as error:
        return str(error)


def trouble_over_grpc(address: str, secure: bool, arguments: argparse.Namespace) -> str:
    """Why the answer is no good; empty: SERVING."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if arguments.server_name:
        options.append(("grpc.ssl_target_name_override", arguments.server_name))
    if secure:
        files = (arguments.ca, arguments.key, arguments.certificate)
        credentials = grpc.ssl_channel_credentials(*(file and file.read_bytes() for file in files))
        channel = grpc.secure_channel(address, credentials, options)
    else:
        channel = grpc.insecure_channel(address, options)
    with channel:
        try:
            request = health_pb2.HealthCheckRequest()
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    well = answer.status == health_pb2.HealthCheckResponse.SERVING
    return "" if well else health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def main() -> int:
    """0 if it is well; else 1 and a reason on stdout, which `docker inspect` shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", nargs="?", default=os.environ.get("OUTRIDER_HEALTH", DEFAULT))
    for name in ("--ca", "--certificate", "--key"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--server-name", default="")
    arguments = parser.parse_args()
    target = urllib.parse.urlsplit(arguments.target)
    if target.scheme in ("http", "https"):
        trouble = trouble_over_http(arguments.target, arguments)
    elif target.scheme in ("grpc", "grpcs"):
        trouble = trouble_over_grpc(target.netloc, target.scheme == "grpcs", arguments)
    else:
        parser.error(f"http, https, grpc or grpcs is expected, got {arguments.target!r}")
    if trouble:
        print(f"{arguments.target}: {trouble}")
    return int(bool(trouble))


if __name__ == "__main__":
    sys.exit(main())
