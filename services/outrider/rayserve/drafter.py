"""The deployments `drafter-NAME`, one for each drafter: each replica is a whole drafter."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry

from outrider.config import OutriderConfig
from outrider.rayserve.hosting import Ready, ServiceReplica, replica_id
from outrider.rayserve.placing import settled
from outrider.rayserve.stats import drafter_stats


class DrafterReplica(ServiceReplica):
    """A replica of one drafter."""

    async def __init__(self, config: OutriderConfig, name: str) -> None:  # type: ignore[misc]  # Serve awaits it
        """Ready once it takes calls. `name`: in `config.drafters`.

        Raises:
            OutriderError: see `outrider.drafting.server.serve`.
        """
        self._config, self._name = settled(config), name
        self._registry = CollectorRegistry()
        models = (config.model, config.drafters[name].model)
        await self._start(self._serve, config.telemetry.log_level, models)

    async def _serve(self, ready: Ready, stop: asyncio.Event) -> None:
        from outrider.drafting.server import serve  # whoever builds the application needs no torch

        own, registry = self._name, self._registry
        await serve(self._config, own, ready=ready, stop=stop, registry=registry, instance_id=replica_id())

    def record_replica_metadata(self) -> dict[str, Any]:
        """Called by Serve, once."""
        return self._metadata("drafter", self._name)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve, for the policy."""
        return drafter_stats(self._registry, self._config.drafters[self._name])
