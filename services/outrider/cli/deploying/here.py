"""Whether this machine alone can run a Serve configuration: Ray would wait for ever for what there is not."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping

from outrider.config.explaining import joined, path_of
from outrider.core.errors import ConfigError
from outrider.rayserve.arguments import Pool
from outrider.rayserve.serve_file import OutriderApplication, ServeFile

_RESOURCES = {"CPU": "cpus", "GPU": "gpus"}


def check_ports(file: ServeFile) -> None:
    """Whether Serve's ports are free.

    Raises:
        ConfigError: one is in use.
    """
    ports = {"http_options.port": (file.schema.http_options.host, file.schema.http_options.port)}
    if file.schema.grpc_options.grpc_servicer_functions:
        ports["grpc_options.port"] = ("::", file.schema.grpc_options.port)
    if wrong := [
        f"{field}: {port} is in use" for field, (host, port) in ports.items() if _in_use(host, port)
    ]:
        raise ConfigError(joined(wrong, file.source))


def check_fits(file: ServeFile, resources: Mapping[str, float]) -> None:
    """Compare the least that the pools need with what is here.

    Args:
        file: what is to run.
        resources: what Ray found, by its names for it: CPU, GPU.

    Raises:
        ConfigError: there is less, or a pool asks for labels, which no node here has.
    """
    if wrong := [line for application in file.ours for line in _missing(application, resources)]:
        raise ConfigError(joined(wrong, file.source))


def _missing(application: OutriderApplication, resources: Mapping[str, float]) -> Iterator[str]:
    at = path_of((*application.at, "args", "pools"))
    for name, pool in application.pools.items():
        if pool.labels:
            yield f"{at}: {name} wants nodes with labels {pool.labels}, and this machine has none"
    ranks = {"verifier": application.arguments.config.verifier.tensor_parallel}
    for resource, field in _RESOURCES.items():
        parts = {
            name: _least(pool) * ranks.get(name, 1) * getattr(pool, field)
            for name, pool in application.pools.items()
        }
        needed, here = sum(parts.values()), resources.get(resource, 0.0)
        if needed > here + 1e-9:
            each = ", ".join(f"{name} {part:g}" for name, part in parts.items() if part)
            yield f"{at}: {needed:g} {field} are needed at least ({each}), this machine has {here:g}"


def _least(pool: Pool) -> int:
    return max(1, pool.min_replicas)  # one that may go to zero is tried at times


def _in_use(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
