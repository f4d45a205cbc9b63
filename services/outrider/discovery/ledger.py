"""Where leases are written down: what the registry and those who enter themselves need of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.discovery.registry import Instance


@dataclass(frozen=True, slots=True)
class Page:
    """What stands in the registry."""

    since: str  # empty: nothing was ever entered
    stalled: bool  # all leases have ended, and nobody has written since: nobody lives, or nobody can write
    instances: tuple[Instance, ...]  # in a stable order


class Ledger(Protocol):
    """Event loop only. Each call is bounded in time."""

    @property
    def address(self) -> str:
        """Where it is, for messages."""

    async def enter(self, instance: Instance, number: str, *, lease_s: float) -> str:
        """Enter an instance, or renew its lease; returns its number, to be said the next time.

        Raises:
            UnavailableError: the ledger is away or refuses, or a younger instance lives at this address.
        """

    async def withdraw(self, instance: Instance) -> None:
        """Take an instance out, unless another one has taken its place.

        Raises:
            UnavailableError: the ledger is away or refuses.
        """

    async def read(self) -> Page:
        """Everybody whose lease is in force.

        Raises:
            UnavailableError: the ledger is away or refuses.
        """

    async def close(self) -> None:
        """Give connections back. Idempotent."""
