"""Entering oneself: in Redis, or nowhere."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace

from outrider.config.schema import OutriderConfig
from outrider.core.errors import ConfigError, UnavailableError
from outrider.discovery.ledger import Ledger
from outrider.discovery.registry import Instance, Load, check_address

_log = logging.getLogger(__name__)

_UNSPECIFIED = ("0.0.0.0", "[::]")  # refused, never bound  # nosec B104


def advertised(config: OutriderConfig, advertise: str, listening: str, setting: str) -> str:
    """The address under which others find who listens at `listening`.

    Args:
        config: a fixed list is not told, so without `advertise` anything goes.
        advertise: as configured; empty: `listening`. With port 0: the port of `listening`.
        listening: host:port.
        setting: name of the setting, for the error.

    Raises:
        ConfigError: it is not host:port, or nobody else can reach it.
    """
    if config.registry.kind == "static" and not advertise:
        return listening
    host, _, port = advertise.rpartition(":")
    if port == "0":
        advertise = f"{host}:{listening.rpartition(':')[2]}"
    address = check_address(advertise or listening)
    if is_unspecified(address):
        raise ConfigError(f"{setting} must be set: others cannot reach this service at {address}")
    return address


def advertised_page(shown: str, page: str) -> str:
    """The address of a /metrics page as others reach it.

    Args:
        shown: the service's own address, as others reach it; host:port.
        page: where the page listens, host:port; empty: there is none.
    """
    return f"{shown.rpartition(':')[0]}:{page.rpartition(':')[2]}" if is_unspecified(page) else page


def is_unspecified(address: str) -> bool:
    """Whether `address` (host:port) stands for all addresses of a machine, so that others cannot use it."""
    return address.rpartition(":")[0] in _UNSPECIFIED


class NullAnnouncer:
    """For a fixed list: there is nowhere to enter oneself."""

    troubles: tuple[str, ...] = ()

    async def start(self, instance: Instance) -> None:
        """See Announcer."""

    def update(self, *, load: Load | None = None, draining: bool | None = None) -> None:
        """See Announcer."""

    async def close(self) -> None:
        """See Announcer."""


class LeaseAnnouncer:
    """Renews one instance's lease once a heartbeat. Event loop only."""

    def __init__(self, ledger: Ledger, *, lease_s: float, heartbeat_s: float) -> None:
        """`ledger` is the registry's; closed with this."""
        self._ledger = ledger
        self._lease_s = lease_s
        self._heartbeat_s = heartbeat_s
        self._instance: Instance | None = None
        self._number = ""
        self._keeper: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closing = False
        self._trouble = ""
        self._rng = random.Random()

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why others may not find this instance, in words for an operator. Empty: they do."""
        return (self._trouble,) if self._trouble else ()

    async def start(self, instance: Instance) -> None:
        """See Announcer. Returns after the first attempt, whatever came of it."""
        self._instance = instance
        entered = await self._renew(instance)
        self._keeper = asyncio.create_task(self._keep(failures=0 if entered else 1))

    def update(self, *, load: Load | None = None, draining: bool | None = None) -> None:
        """See Announcer. Before `start` there is nothing to update."""
        if (before := self._instance) is None:
            return
        now = replace(
            before,
            load=before.load if load is None else load,
            draining=before.draining if draining is None else draining,
        )
        self._instance = now
        if now.draining != before.draining:
            self._wake.set()

    async def close(self) -> None:
        """See Announcer."""
        self._closing = True
        self._wake.set()
        # Not cancelled: a renewal on its way could come after the withdrawal.
        if (keeper := self._keeper) is not None and self._instance is not None:
            await keeper
            instance, self._instance = self._instance, None
            try:
                await self._ledger.withdraw(instance)
            except UnavailableError as error:
                _log.info("the lease will run out by itself: %s", error)
        await self._ledger.close()

    async def _keep(self, failures: int) -> None:
        while True:
            await self._pause(failures)
            if self._closing or self._instance is None:
                return
            failures = 0 if await self._renew(self._instance) else failures + 1

    async def _pause(self, failures: int) -> None:
        """Until the next heartbeat, later after failures, or until woken."""
        delay = self._heartbeat_s
        if failures:
            # Back within the lease that readers allow for once Redis is there again.
            longest = max(self._heartbeat_s, self._lease_s / 2)
            delay = min(delay * 2.0 ** min(failures, 10), longest) * self._rng.uniform(0.5, 1.0)
        try:
            async with asyncio.timeout(delay):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _renew(self, instance: Instance) -> bool:
        try:
            self._number = await self._ledger.enter(instance, self._number, lease_s=self._lease_s)
        except UnavailableError as error:
            if not self._trouble:
                _log.warning("not in the registry: %s", error)
            self._trouble = str(error)
            return False
        if self._trouble:
            _log.info("in the registry again at %s", self._ledger.address)
        self._trouble = ""
        return True
