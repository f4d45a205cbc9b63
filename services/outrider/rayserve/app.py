"""The Serve application, built from its arguments.

    gateway ──▶ verifier ──▶ drafter-NAME ...      over their own gRPC servers
       └───────────┴──────────────┴──▶ registry    over Serve's handles

Options that a Serve configuration file gives under `deployments:` come on top of those made here.
"""

from __future__ import annotations

from ray import serve
from ray.serve import Application

from outrider.config import OutriderConfig
from outrider.core.errors import ConfigError
from outrider.discovery.ray_ledger import DEPLOYMENT as REGISTRY
from outrider.rayserve.arguments import Pool, ServeArguments
from outrider.rayserve.drafter import DrafterReplica
from outrider.rayserve.gateway import Gateway
from outrider.rayserve.options import drafter_options, gateway_options, registry_options, verifier_options
from outrider.rayserve.placing import placed
from outrider.rayserve.registry import RegistryReplica
from outrider.rayserve.verifier import VerifierReplica

GATEWAY, VERIFIER = "gateway", "verifier"


def drafter_deployment(name: str) -> str:
    """How the deployment of drafter `name` is called."""
    return f"drafter-{name}"


def build(args: ServeArguments) -> Application:
    """The application. Serve calls this on the cluster, with `args` of its configuration file.

    Raises:
        ConfigError: a setting makes no sense under Serve.
    """
    config = placed(with_registry(args.config), loopback=args.loopback)
    pools = args.pools
    parts: list[Application] = []
    if config.registry.kind == "ray":
        parts.append(serve.deployment(RegistryReplica).options(name=REGISTRY, **registry_options()).bind())
    verifier = serve.deployment(VerifierReplica).options(
        name=VERIFIER, **verifier_options(config, pools.verifier)
    )
    parts.append(verifier.bind(config))
    for name in config.drafters:
        options = drafter_options(pools.drafters.get(name, Pool()))
        drafter = serve.deployment(DrafterReplica).options(name=drafter_deployment(name), **options)
        parts.append(drafter.bind(config, name))
    # Serve deploys what the ingress is given; it calls none of them.
    gateway = serve.deployment(Gateway).options(name=GATEWAY, **gateway_options(config, pools.gateway))
    return gateway.bind(config, *parts)


def with_registry(config: OutriderConfig) -> OutriderConfig:
    """`config` with a registry that replicas can enter themselves into: Ray's, unless it says Redis.

    Raises:
        ConfigError: it asks for a fixed list.
    """
    if config.registry.kind != "static":
        return config
    if "kind" in config.registry.model_fields_set:
        raise ConfigError(
            "registry.kind: static cannot be used under Ray Serve, where replicas come and go: "
            "leave it out (ray), or use ray or redis"
        )
    return config.model_copy(update={"registry": config.registry.model_copy(update={"kind": "ray"})})
