"""The links of one verifier: one to each drafter replica that the registry lists."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager

from outrider.discovery import Instance, Registry, Role
from outrider.verifying.links import DrafterLink, LinkReport, LinkStatus, link_of

_log = logging.getLogger(__name__)

_STANDING = (LinkStatus.READY, LinkStatus.DRAINING)


class LinkTable(Mapping[str, DrafterLink]):
    """Makes links and takes them down as replicas come and go. Event loop only.

    The registry is a hint: a replica that it does not list any more is used for as long as its link stands.
    """

    def __init__(
        self,
        registry: Registry,
        names: Collection[str],
        make: Callable[[Instance, Callable[[LinkReport], None]], DrafterLink],
        gone: Callable[[str, str], None],
    ) -> None:
        """Args:
        registry: closed with this.
        names: the drafters that are configured; replicas of others are none of ours.
        make: makes a link to a replica, which tells its status.
        gone: told key and drafter of each link that is taken down.
        """
        self._registry = registry
        self._names = tuple(names)
        self._make = make
        self._gone = gone
        self._links: dict[str, DrafterLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._listed: dict[str, Instance] = {}

    def __getitem__(self, key: str) -> DrafterLink:
        return self._links[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the registry, and hold the links; those to what it lists now exist at once."""
        self._follow(await self._registry.list(Role.DRAFTER))
        follower = asyncio.create_task(self._watch())
        follower.add_done_callback(_tell_defect)
        try:
            yield
        finally:
            tasks = [follower, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._registry.close()

    def reports(self, name: str) -> list[LinkReport]:
        """Where the links to the replicas of one drafter stand, by address."""
        reports = [link.report for link in self._links.values()]
        return sorted((one for one in reports if one.name == name), key=lambda one: one.address)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Which drafters do not work as they should, in words for an operator."""
        words = [one for name in self._names for one in _troubles_of(name, self.reports(name))]
        return (*self._registry.troubles, *words)

    async def _watch(self) -> None:
        async for instances in self._registry.watch(Role.DRAFTER):
            self._follow(instances)

    def _follow(self, instances: Iterable[Instance]) -> None:
        self._listed = {link_of(one.name, one.address): one for one in instances if one.name in self._names}
        for key, instance in self._listed.items():
            if key not in self._links:
                self._add(instance)
            self._links[key].listed(instance)
        addresses = {instance.address for instance in self._listed.values()}
        for key, link in list(self._links.items()):
            # Where another drafter has entered itself, nothing of the old one is left.
            if key not in self._listed and (
                link.report.status not in _STANDING or link.report.address in addresses
            ):
                self._remove(key)

    def _add(self, instance: Instance) -> None:
        link = self._make(instance, self._stands)
        self._links[link.key] = link
        task = self._tasks[link.key] = asyncio.create_task(link.run())
        task.add_done_callback(_tell_defect)

    def _stands(self, report: LinkReport) -> None:
        """A link's status has changed: one that nobody lists is not connected again."""
        key = link_of(report.name, report.address)
        if key not in self._listed and report.status not in _STANDING:
            self._remove(key)

    def _remove(self, key: str) -> None:
        if (link := self._links.pop(key, None)) is not None:
            self._tasks.pop(key).cancel()
            self._gone(key, link.report.name)


def _troubles_of(name: str, reports: list[LinkReport]) -> Iterator[str]:
    if not reports:
        yield f"drafter {name} has no replica: the registry lists none"
    up = sum(one.status is LinkStatus.READY for one in reports)
    for one in reports:
        if one.away and len(reports) == 1:
            yield f"drafter {name} is {one.status.value}: {one.detail}"
        elif one.away:
            place = f"drafter {name} at {one.address}"
            yield f"{place} is {one.status.value} ({up} of {len(reports)} replicas are ready): {one.detail}"


def _tell_defect(task: asyncio.Task[None]) -> None:
    """A link that ends by itself costs speed only, but nobody else would notice."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a drafter link ended by a defect", exc_info=error)
