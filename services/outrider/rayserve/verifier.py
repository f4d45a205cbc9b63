"""The deployment `verifier`: each replica is a whole verifier with its own gRPC server."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry

from outrider.config import OutriderConfig
from outrider.rayserve.hosting import Hosted, Ready, log_with_serve, metadata, replica_id
from outrider.rayserve.placing import fetch_models, settled
from outrider.verifying.server import serve


class VerifierReplica:
    """A verifier. Its followers, if it is tensor parallel, are actors in the replica's placement group."""

    async def __init__(self, config: OutriderConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        """Ready once it takes calls.

        Raises:
            OutriderError: see `outrider.verifying.server.serve`.
        """
        log_with_serve(config.telemetry.log_level)
        self._config = settled(config)
        self._registry = CollectorRegistry()
        await asyncio.to_thread(fetch_models, config.model)
        self._hosted: Hosted | None = None
        self._hosted = await Hosted.start(self._serve)

    async def _serve(self, ready: Ready, stop: asyncio.Event) -> None:
        await serve(self._config, ready=ready, stop=stop, registry=self._registry, instance_id=replica_id())

    def check_health(self) -> None:
        """Called by Serve; an error has the replica replaced."""
        if self._hosted is not None:
            self._hosted.check()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Called by Serve, once."""
        assert self._hosted is not None
        ranks = self._config.verifier.tensor_parallel
        return metadata("verifier", "", self._hosted.addresses, ranks)

    async def __del__(self) -> None:
        """Called by Serve when the replica is to go: hand over what runs."""
        if self._hosted is not None:
            await self._hosted.stop()
