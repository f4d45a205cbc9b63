"""The registry in Redis, for those who look for others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from time import monotonic

from outrider.core.errors import UnavailableError
from outrider.discovery.entries import field_of
from outrider.discovery.ledger import Ledger, Page
from outrider.discovery.registry import Instance, Role, chosen

_log = logging.getLogger(__name__)


class LeaseRegistry:
    """Reads the list once a heartbeat for each watch. Event loop only.

    While Redis is away the last list stays in force. After that, or if Redis comes back without what it held,
    who is not in the new list is kept for one lease more: by then whoever is alive has entered itself again.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        lease_s: float,
        heartbeat_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Args:
        ledger: the registry's; closed with this.
        lease_s: how long a lease lasts.
        heartbeat_s: how often the list is read.
        clock: monotonic seconds.
        """
        self._ledger = ledger
        self._lease_s = lease_s
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._closed = asyncio.Event()
        self._known: dict[str, Instance] = {}
        self._since: str | None = None  # None: nothing was read yet
        self._doubtful = False  # the last reading failed, or showed that nobody can write
        self._lenient_until: float | None = None
        self._read_at: float | None = None
        self._trouble = ""

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong with the registry, in words for an operator. Empty: all is well."""
        if not self._trouble:
            return ()
        if self._read_at is None:
            return (f"{self._trouble}; nobody is known yet",)
        return (f"{self._trouble}; the list of {self._clock() - self._read_at:.0f} s ago stays in force",)

    async def list(self, role: Role | None = None, name: str | None = None) -> tuple[Instance, ...]:
        """See Registry. While Redis is away, the last list."""
        await self._refresh()
        return tuple(chosen(self._known.values(), role, name))

    async def watch(self, role: Role, name: str | None = None) -> AsyncIterator[tuple[Instance, ...]]:
        """See Registry. A change of somebody's load is a change."""
        told: tuple[Instance, ...] | None = None
        while not self._closed.is_set():
            now = await self.list(role, name)
            if now != told:
                told = now
                yield now
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._closed.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """End all watches. Idempotent."""
        self._closed.set()
        await self._ledger.close()

    async def _refresh(self) -> None:
        try:
            page = await self._ledger.read()
        except UnavailableError as error:
            self._doubtful = True
            self._say(str(error))
            return
        self._say(f"registry {self._ledger.address}: no lease was renewed in time" if page.stalled else "")
        self._take(page)

    def _take(self, page: Page) -> None:
        now = self._clock()
        forgotten = self._since not in (None, page.since)
        if self._doubtful or forgotten or page.stalled:
            self._lenient_until = now + self._lease_s
        listed = {field_of(instance): instance for instance in page.instances}
        if self._lenient_until is not None and now < self._lenient_until:
            listed = {**self._known, **listed}
        self._known = dict(sorted(listed.items()))
        self._since, self._doubtful = page.since, page.stalled
        if not page.stalled:
            self._read_at = now

    def _say(self, trouble: str) -> None:
        if trouble and not self._trouble:
            _log.warning("%s", trouble)
        elif self._trouble and not trouble:
            _log.info("registry %s is back", self._ledger.address)
        self._trouble = trouble
