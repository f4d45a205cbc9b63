"""The deployment `verifier`: each replica is a whole verifier with its own gRPC server."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry

from outrider.config import OutriderConfig
from outrider.rayserve.hosting import Ready, ServiceReplica, replica_id
from outrider.rayserve.placing import settled
from outrider.rayserve.ranks import RayRankLauncher
from outrider.rayserve.stats import verifier_stats


class VerifierReplica(ServiceReplica):
    """A verifier. Its followers, if it is tensor parallel, are actors in the replica's placement group."""

    async def __init__(self, config: OutriderConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        """Ready once it takes calls.

        Raises:
            OutriderError: see `outrider.verifying.server.serve`.
        """
        self._config = settled(config)
        self._registry = CollectorRegistry()
        await self._start(self._serve, config.telemetry.log_level, (config.model,))

    async def _serve(self, ready: Ready, stop: asyncio.Event) -> None:
        from outrider.verifying.server import serve  # whoever builds the application needs no torch

        await serve(
            self._config,
            ready=ready,
            stop=stop,
            launcher=RayRankLauncher(self._config.model, self._config.verifier.host),
            registry=self._registry,
            instance_id=replica_id(),
        )

    def record_replica_metadata(self) -> dict[str, Any]:
        """Called by Serve, once."""
        return self._metadata("verifier", ranks=self._config.verifier.tensor_parallel)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve, for the policy."""
        return verifier_stats(self._registry, self._config.verifier)
