"""The deployment `registry`: one replica that knows who is alive. `discovery.ray_ledger` asks it."""

from __future__ import annotations

from outrider.discovery.leases import Leases


class RegistryReplica:
    """Holds the leases in memory. If it is replaced, whoever is alive enters himself again."""

    def __init__(self) -> None:
        self._leases = Leases()

    async def enter(
        self, field: str, lease_s: float, instance_id: str, number: str, body: str
    ) -> tuple[bool, str]:
        """See Leases."""
        return self._leases.enter(field, lease_s, instance_id, number, body)

    async def withdraw(self, field: str, instance_id: str) -> None:
        """See Leases."""
        self._leases.withdraw(field, instance_id)

    async def read(self) -> tuple[str, bool, list[str]]:
        """See Leases."""
        return self._leases.read()
