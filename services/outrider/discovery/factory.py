"""The registry that the configuration asks for."""

from __future__ import annotations

from outrider.config.schema import OutriderConfig
from outrider.discovery.announcing import LeaseAnnouncer, NullAnnouncer
from outrider.discovery.lease import LeaseRegistry
from outrider.discovery.ledger import Ledger
from outrider.discovery.redis_ledger import RedisLedger
from outrider.discovery.registry import Announcer, Instance, Registry, Role, StaticRegistry


def open_registry(config: OutriderConfig, *roles: Role) -> Registry:
    """The registry, to look for replicas of `roles`. Redis is reached at the first call.

    Raises:
        ConfigError: an address or the URL is wrong.
    """
    own = config.registry
    if own.kind == "static":
        return StaticRegistry([instance for role in roles for instance in _listed(config, role)])
    return LeaseRegistry(_ledger(config), lease_s=own.lease_s, heartbeat_s=own.heartbeat_s)


def open_announcer(config: OutriderConfig) -> Announcer:
    """What a replica enters itself with.

    Raises:
        ConfigError: the URL is wrong.
    """
    own = config.registry
    if own.kind == "static":
        return NullAnnouncer()
    return LeaseAnnouncer(_ledger(config), lease_s=own.lease_s, heartbeat_s=own.heartbeat_s)


def _listed(config: OutriderConfig, role: Role) -> list[Instance]:
    if role is Role.VERIFIER:
        addresses = config.gateway.verifiers or (f"{config.verifier.host}:{config.verifier.port}",)
        port = config.verifier.metrics_port
        return [Instance(role, address, metrics=_page(address, port)) for address in addresses]
    if role is Role.DRAFTER:
        return [
            Instance(role, address, name, metrics=_page(address, drafter.metrics_port))
            for name, drafter in config.drafters.items()
            for address in drafter.addresses or (f"{drafter.host}:{drafter.port}",)
        ]
    return []


def _page(address: str, metrics_port: int | None) -> str:
    """The /metrics page of whoever is at `address`: all are taken to have the port of this configuration."""
    return f"{address.rpartition(':')[0]}:{metrics_port}" if metrics_port else ""


def _ledger(config: OutriderConfig) -> Ledger:
    # An answer that is later than that would let the lease run out before the next attempt.
    timeout_s = min(config.store.timeout_s, config.registry.lease_s / 3)
    if config.registry.kind == "ray":
        from outrider.discovery.ray_ledger import RayLedger  # Ray takes a second to import

        return RayLedger.of_this_application(timeout_s=timeout_s)
    namespace = config.registry.namespace or config.name
    url, setting = config.registry.url, "registry.url"
    if not url:
        url, setting = config.store.url, "store.url"
    return RedisLedger(url, namespace=namespace, timeout_s=timeout_s, setting=setting)
