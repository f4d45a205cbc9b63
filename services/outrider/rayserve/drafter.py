"""The deployments `drafter-NAME`, one for each drafter: each replica is a whole drafter."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry

from outrider.config import OutriderConfig
from outrider.drafting.server import serve
from outrider.rayserve.hosting import Hosted, Ready, log_with_serve, metadata, replica_id
from outrider.rayserve.placing import fetch_models, settled


class DrafterReplica:
    """A replica of one drafter."""

    async def __init__(self, config: OutriderConfig, name: str) -> None:  # type: ignore[misc]  # Serve awaits it
        """Ready once it takes calls. `name`: in `config.drafters`.

        Raises:
            OutriderError: see `outrider.drafting.server.serve`.
        """
        log_with_serve(config.telemetry.log_level)
        self._config, self._name = settled(config), name
        self._registry = CollectorRegistry()
        self._hosted: Hosted | None = None
        await asyncio.to_thread(fetch_models, config.model, config.drafters[name].model)
        self._hosted = await Hosted.start(self._serve)

    async def _serve(self, ready: Ready, stop: asyncio.Event) -> None:
        await serve(
            self._config,
            self._name,
            ready=ready,
            stop=stop,
            registry=self._registry,
            instance_id=replica_id(),
        )

    def check_health(self) -> None:
        """Called by Serve; an error has the replica replaced."""
        if self._hosted is not None:
            self._hosted.check()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Called by Serve, once."""
        assert self._hosted is not None
        return metadata("drafter", self._name, self._hosted.addresses)

    async def __del__(self) -> None:
        """Called by Serve when the replica is to go: proposals that are owed go out first."""
        if self._hosted is not None:
            await self._hosted.stop()
