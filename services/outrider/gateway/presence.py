"""The gateway's own entry in the registry: nobody sends it sessions, but its /metrics page is looked for."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from prometheus_client import CollectorRegistry

from outrider.config.schema import GatewayConfig, OutriderConfig
from outrider.discovery import (
    Instance,
    Load,
    Role,
    advertised,
    advertised_page,
    announced,
    is_unspecified,
    open_announcer,
)
from outrider.gateway.parts import Parts
from outrider.telemetry.metrics import serve_metrics

_LOG = logging.getLogger(__name__)


@contextmanager
def metrics_page(own: GatewayConfig, metrics: CollectorRegistry) -> Iterator[str]:
    """The /metrics page on a listener of its own, if there is to be one; yields host:port, or nothing."""
    if own.metrics_port is None:
        yield ""
        return
    page = serve_metrics(metrics, own.host, own.metrics_port)
    try:
        yield page.address
    finally:
        page.close()


@asynccontextmanager
async def present(
    config: OutriderConfig, parts: Parts, address: str, page: str, instance_id: str
) -> AsyncIterator[None]:
    """The gateway is in the registry, if others can reach it.

    Args:
        config: of the whole deployment.
        parts: the gateway's.
        address: where it listens; host:port.
        page: where its /metrics page listens; host:port; empty: nowhere.
        instance_id: tells it from others, also earlier ones at its address.

    Raises:
        ConfigError: `gateway.advertise` is no address.
    """
    advertise = config.gateway.advertise
    if is_unspecified(address) and not advertise:
        _LOG.info("gateway.advertise is not set: /metrics/targets leaves this gateway out")
        yield
        return
    shown = advertised(config, advertise, address, "gateway.advertise")
    instance = Instance(
        Role.GATEWAY, shown, instance_id=instance_id, metrics=advertised_page(shown, page) if page else ""
    )
    parts.targets.add_own(instance)
    announcer = open_announcer(config)
    try:
        interval_s = config.registry.heartbeat_s
        async with announced(announcer, instance, lambda: _load(parts), interval_s=interval_s):
            yield
    finally:
        await announcer.close()


def _load(parts: Parts) -> Load:
    return Load(running=len(parts.generations))
