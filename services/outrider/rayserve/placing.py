"""What a replica makes of the deployment's configuration on the node where it finds itself."""

from __future__ import annotations

import ray

from outrider.catalogue import CATALOGUE, fetch, is_fetched
from outrider.config import OutriderConfig
from outrider.core.errors import ConfigError

_LOOPBACK, _OF_THE_NODE = "127.0.0.1", "0.0.0.0"  # the latter is never bound  # nosec B104


def placed(config: OutriderConfig, *, loopback: bool) -> OutriderConfig:
    """`config` whose services listen where `settled` finds itself, or on loopback."""
    return _listening(config, _LOOPBACK if loopback else _OF_THE_NODE)


def settled(config: OutriderConfig) -> OutriderConfig:
    """What `placed` made, for a replica here: it listens at the node's address as Ray knows it, at any port.

    Whoever looks for it asks the registry, so what `config` says about addresses is left out.

    Raises:
        ConfigError: services are to listen on loopback, and there are other nodes.
    """
    if config.verifier.host == _OF_THE_NODE:
        return _listening(config, ray.util.get_node_ip_address())
    if (nodes := sum(bool(node["Alive"]) for node in ray.nodes())) > 1:
        raise ConfigError(f"loopback: true is for a cluster of one node, but this one has {nodes}")
    return _listening(config, _LOOPBACK)


def _listening(config: OutriderConfig, host: str) -> OutriderConfig:
    here = {"host": host, "port": 0, "metrics_port": 0, "advertise": ""}
    gateway = {"host": host, "http_port": 0, "grpc_port": 0, "metrics_port": 0, "advertise": ""}
    gateway["verifiers"] = ()
    drafters = {
        name: drafter.model_copy(update={**here, "addresses": ()})
        for name, drafter in config.drafters.items()
    }
    return config.model_copy(
        update={
            "verifier": config.verifier.model_copy(update=here),
            "drafters": drafters,
            "gateway": config.gateway.model_copy(update=gateway),
        }
    )


def fetch_models(*names: str) -> None:
    """Fetch those of the catalogue that this node does not have. Blocks for as long as that takes.

    Raises:
        UnavailableError: a download failed.
        InternalError: a conversion failed.
    """
    for name in names:
        if name in CATALOGUE and not is_fetched(name):
            fetch(name)
