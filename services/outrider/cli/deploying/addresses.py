"""Where clients reach what was deployed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ray.serve.schema import ServeInstanceDetails

from outrider.rayserve.serve_file import ServeFile

_EVERYWHERE = ("0.0.0.0", "::", "")  # names of all interfaces, nothing is bound here  # nosec B104


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of one proxy; there may be one on each node."""

    http: str  # URL; empty: there is none
    grpc: str  # HOST:PORT; empty: there is none


def addresses_of(details: ServeInstanceDetails, file: ServeFile) -> Addresses:
    """Those of a proxy that takes calls. What Serve runs with counts, not what the file asks for."""
    nodes = sorted(proxy.node_ip or "" for proxy in details.proxies.values() if proxy.status == "HEALTHY")
    if not nodes:
        return Addresses("", "")
    node = "127.0.0.1" if "127.0.0.1" in nodes else nodes[0]
    options, http = details.http_options, ""
    if options is not None:
        host = node if options.host in _EVERYWHERE else options.host
        prefix = file.schema.applications[_first_of_ours(file)].route_prefix or ""
        scheme = "https" if options.ssl_certfile else "http"
        http = f"{scheme}://{host}:{options.port}{options.root_path}{prefix}".rstrip("/")
    grpc = details.grpc_options
    has_grpc = grpc is not None and file.has_grpc
    return Addresses(http, f"{node}:{grpc.port}" if grpc is not None and has_grpc else "")


def replicas_of(details: ServeInstanceDetails, names: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """By deployment: node and process id of each replica that runs."""
    return {
        deployment.name: [
            {"id": replica.replica_id, "node": replica.node_ip, "pid": replica.pid}
            for replica in deployment.replicas
            if replica.state == "RUNNING"
        ]
        for name in names
        if name in details.applications
        for deployment in details.applications[name].deployments.values()
    }


def _first_of_ours(file: ServeFile) -> int:
    number = file.ours[0].at[1]
    assert isinstance(number, int)
    return number
