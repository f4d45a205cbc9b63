"""The Serve application, built from its arguments.

    gateway ──▶ verifier ──▶ drafter-NAME ...      over their own gRPC servers
       └───────────┴──────────────┴──▶ registry    over Serve's handles

Options that a Serve configuration file gives under `deployments:` come on top of those made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from ray import serve
from ray.serve import Application

from outrider.config import OutriderConfig
from outrider.config.explaining import explain
from outrider.core.errors import ConfigError
from outrider.discovery.ray_ledger import DEPLOYMENT as REGISTRY
from outrider.rayserve.arguments import ServeArguments
from outrider.rayserve.drafter import DrafterReplica
from outrider.rayserve.gateway import Gateway, check
from outrider.rayserve.options import drafter_options, gateway_options, registry_options, verifier_options
from outrider.rayserve.placing import placed
from outrider.rayserve.registry import RegistryReplica
from outrider.rayserve.steering import GATEWAY
from outrider.rayserve.verifier import VerifierReplica
from outrider.scaling.observation import VERIFIER, drafter_pool

HEARTBEAT_S = 1.0
"""Of the registry in Ray, unless the configuration says: a call through Serve takes milliseconds of CPU."""


def build(args: Mapping[str, Any] | ServeArguments) -> Application:
    """The application. Serve calls this on the cluster.

    Args:
        args: of its configuration file: what ServeArguments describes.

    Raises:
        ConfigError: each value that is wrong, what was given, what is allowed.
    """
    try:
        arguments = ServeArguments.model_validate(args)
    except ValidationError as error:
        raise ConfigError(explain(error, "args", ServeArguments)) from None
    check(arguments.config)
    return _application(arguments)


def _application(args: ServeArguments) -> Application:
    config = placed(_with_registry(args.config), loopback=args.loopback)
    pools = args.pools
    parts: list[Application] = []
    if config.registry.kind == "ray":
        parts.append(serve.deployment(RegistryReplica).options(name=REGISTRY, **registry_options()).bind())
    verifier = serve.deployment(VerifierReplica).options(name=VERIFIER, **verifier_options(config, pools))
    parts.append(verifier.bind(config))
    for name in config.drafters:
        options = drafter_options(name, pools)
        drafter = serve.deployment(DrafterReplica).options(name=drafter_pool(name), **options)
        parts.append(drafter.bind(config, name))
    # Serve deploys what the ingress is given; it calls none of them.
    gateway = serve.deployment(Gateway).options(name=GATEWAY, **gateway_options(config, pools.gateway))
    return gateway.bind(config, *parts)


def _with_registry(config: OutriderConfig) -> OutriderConfig:
    """`config` with a registry that replicas can enter themselves into: Ray's, unless it says Redis."""
    own = config.registry
    if own.kind == "redis":
        return config
    changes: dict[str, Any] = {"kind": "ray"}
    if "heartbeat_s" not in own.model_fields_set and own.lease_s >= 2 * HEARTBEAT_S:
        changes["heartbeat_s"] = HEARTBEAT_S
    return config.model_copy(update={"registry": own.model_copy(update=changes)})
