"""All verifiers of a gateway: who is there, and where a session should go."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence

from outrider.core.errors import OutriderError
from outrider.discovery import Instance, Registry, Role
from outrider.gateway import placement
from outrider.gateway.probing import Check, Prober
from outrider.gateway.signals import Signal
from outrider.gateway.verifier_link import OpenChannel, VerifierLink
from outrider.wire.messages import VerifierInfo

_LOG = logging.getLogger(__name__)

REGISTRY_RETRY_S = 1.0


class VerifierPool:
    """All verifiers of a gateway. They serve the same model.

    The registry says where to look; whether a verifier is there is its own answer's to say. One that has
    left the registry keeps its streams, takes sessions only if no other is there, and is forgotten
    when it does not answer any more.
    """

    def __init__(
        self,
        registry: Registry,
        open_channel: OpenChannel,
        check: Check,
        *,
        probe_s: float = 0.5,
        timeout_s: float = 3.0,
        draw: random.Random | None = None,
    ) -> None:
        """Args:
        registry: where verifiers are; not closed here.
        open_channel: opens a channel to an address.
        check: raises ModelMismatchError for a verifier (second argument: its address) to refuse.
        probe_s: how often each is asked how it is.
        timeout_s: one that has not answered for so long counts as gone.
        draw: chance, for placement.
        """
        self.moved = Signal()  # told whenever a verifier comes or goes
        self._registry = registry
        self._open_channel = open_channel
        self._check = check
        self._probe_s = probe_s
        self._timeout_s = timeout_s
        self._draw = draw or random.Random()
        self._links: dict[str, VerifierLink] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None

    @property
    def info(self) -> VerifierInfo | None:
        """What a verifier that is there says of itself, one that takes sessions first; None while none is."""
        there = [link for link in self._links.values() if link.info is not None]
        there.sort(key=lambda link: link.draining)
        return there[0].info if there else None

    @property
    def degraded(self) -> tuple[str, ...]:
        """What does not work as it should although requests are answered, in words for an operator."""
        reasons = list(self._registry.troubles)  # they begin "registry ADDRESS"
        for link in self._links.values():
            if link.refusal is not None:
                troubles: tuple[str, ...] = (str(link.refusal),)
            else:
                troubles = ("does not answer",) if link.info is None else link.info.degraded
            reasons += [f"verifier {link.address}: {trouble}" for trouble in troubles]
        return tuple(reasons)

    @property
    def states(self) -> list[str]:
        """How each is found: one of names.VERIFIER_STATES."""
        return [_state(link) for link in list(self._links.values())]

    @property
    def registry_degraded(self) -> bool:
        """Whether the registry cannot be read, so that the last list is in force."""
        return bool(self._registry.troubles)

    async def availability(self) -> AsyncIterator[bool]:
        """Whether a verifier takes sessions: now, and again whenever that may have changed."""
        while True:
            upcoming = self.moved.upcoming
            yield any(link.info is not None and not link.draining for link in self._links.values())
            await upcoming.wait()

    async def connect(self) -> VerifierInfo:
        """Follow the registry, and wait for as long as it takes until a verifier answers.

        Raises:
            ModelMismatchError: all that are known must not be used.
        """
        self._following = asyncio.create_task(self._follow())
        while True:
            upcoming = self.moved.upcoming
            if (info := self.info) is not None:
                return info
            refusals = [link.refusal for link in self._links.values()]
            if refusals and refusals[0] is not None and all(refusals):
                raise refusals[0]
            await upcoming.wait()

    def places(self, *, key: bytes = b"", holder: str = "", model: str = "") -> list[VerifierLink]:
        """The verifiers that take sessions, in the order in which to try them.

        `key` and `holder`: see `placement.order`. `model`: its identity (ModelInfo), to go on with a session
        of it; empty: any.
        """
        links = [
            link
            for link in self._links.values()
            if not model or (link.info is not None and link.info.model.identity == model)
        ]
        listed = [link for link in links if link.listed]
        return self._order(listed, key, holder) or self._order(links, key, holder)

    async def recheck(self, within_s: float, links: Sequence[VerifierLink] | None = None) -> bool:
        """Wait for the answers of those (of `links`) that calls found away; whether one of them is there."""
        suspects = [link for link in links or self._links.values() if link.suspect]
        waits = [asyncio.create_task(link.asked.upcoming.wait()) for link in suspects]
        if waits:
            await asyncio.wait(waits, timeout=within_s)
            for wait in waits:
                wait.cancel()
        return any(link.candidate.alive for link in suspects)

    async def close(self) -> None:
        """Stop following and close all connections."""
        tasks = [*self._probes.values(), *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links.values():
            await link.close()

    def _order(self, links: list[VerifierLink], key: bytes, holder: str) -> list[VerifierLink]:
        candidates = [link.candidate for link in links]
        ordered = placement.order(candidates, draw=self._draw, key=key, holder=holder)
        return [self._links[address] for address in ordered]

    async def _follow(self) -> None:
        """Links come and go as the registry says."""
        while True:
            try:
                async for instances in self._registry.watch(Role.VERIFIER):
                    self._take(instances)
            except OutriderError as error:
                _LOG.warning("the registry cannot be read: %s", error)
            await asyncio.sleep(REGISTRY_RETRY_S)

    def _take(self, instances: tuple[Instance, ...]) -> None:
        listed = {instance.address: instance for instance in instances}
        before = self._listing()
        for address, instance in listed.items():
            link = self._links.get(address) or self._add(address)
            link.listed = True
            link.leaving = instance.instance_id if instance.draining else ""
        for address, link in self._links.items():
            if link.listed and address not in listed:
                _LOG.info("verifier %s has left the registry", address)
                link.listed = False
        if self._listing() != before:
            self.moved.notify()

    def _listing(self) -> list[tuple[str, bool, str]]:
        """What the registry says that matters for placement."""
        return [(link.address, link.listed, link.leaving) for link in self._links.values()]

    def _add(self, address: str) -> VerifierLink:
        link = self._links[address] = VerifierLink(address, self._open_channel, self.moved)
        prober = Prober(link, self._check, probe_s=self._probe_s, timeout_s=self._timeout_s)
        self._probes[address] = asyncio.create_task(self._keep(link, prober))
        return link

    async def _keep(self, link: VerifierLink, prober: Prober) -> None:
        """Until it is over with the link."""
        await prober.run()
        del self._links[link.address], self._probes[link.address]
        self.moved.notify()
        await link.close()


def _state(link: VerifierLink) -> str:
    if link.refusal is not None:
        return "refused"
    if link.info is None:
        return "away"
    return "draining" if link.draining else "ready"
