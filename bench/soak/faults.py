"""Breaks one thing after the other, at moments that a seed decides, and mends it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from bench.soak.journal import Journal
from bench.soak.streams import IDLE_S, Traffic
from bench.soak.world import DRAFTERS, GATEWAYS, MORTAL, VERIFIERS, World
from tests.proxy import Proxy
from tests.stack import Service, total

PAUSE_S = (0.5, 2.5)
"""Between two faults."""
HOLD_S = (0.3, 3.0)
"""How long what was broken stays so, if it is not started again at once."""
HOLD_GATEWAY_S = (IDLE_S / 2, IDLE_S + 3.0)
"""The same for a gateway that does not answer: sometimes too long for its clients' patience."""
SETTLE_S = 60.0

Act = Callable[[str], Awaitable[None]]


@dataclass
class Breaker:
    """All kinds of faults, in turns drawn from a bag, so that none is left out."""

    world: World
    traffic: Traffic
    journal: Journal
    dice: random.Random

    async def run(self, until: float) -> None:
        """Break and mend until the moment `until`."""
        bag = self._bag()
        while True:
            await asyncio.sleep(self.dice.uniform(*PAUSE_S))
            if time.monotonic() >= until:
                return
            kind, target, act = next(bag)
            fault = self.journal.broke(kind, target)
            await act(target)
            self.journal.mended(fault)

    def _bag(self) -> Iterator[tuple[str, str, Act]]:
        everything: list[tuple[str, str, Act]] = [
            *(("kill", name, self._kill) for name in MORTAL),
            *(("drain", name, self._drain) for name in MORTAL),
            *(("freeze", name, self._freeze) for name in (*VERIFIERS, *GATEWAYS, *DRAFTERS)),
            *(("cut link", name, self._cut) for name in (*VERIFIERS, *GATEWAYS, *DRAFTERS)),
            *(("dead link", name, self._deaden) for name in (*VERIFIERS, *GATEWAYS, *DRAFTERS)),
            ("restart", "redis", self._restart_redis),
            ("restart empty", "redis", self._empty_redis),
            ("freeze", "redis", self._freeze_redis),
            ("cut link", "redis", self._cut_redis),
            ("slow link", "redis", self._slow_redis),
        ]
        while True:
            self.dice.shuffle(everything)
            yield from everything

    # --- services ---------------------------------------------------------------------------

    async def _kill(self, name: str) -> None:
        service = self.world.stack[name]
        await asyncio.to_thread(service.kill)
        await self._hold()
        await self._start(service)

    async def _drain(self, name: str) -> None:
        service = self.world.stack[name]
        service.terminate()
        problem = await asyncio.to_thread(service.finish)
        if problem:
            self.journal.violation(f"drain: {problem}")
        await self._start(service)

    async def _freeze(self, name: str) -> None:
        service = self.world.stack[name]
        service.freeze()
        try:
            await self._hold(name)
        finally:
            service.thaw()
        await self._serving(service)

    async def _start(self, service: Service) -> None:
        service.start()
        await self._serving(service)

    async def _serving(self, service: Service) -> None:
        try:
            await asyncio.to_thread(service.wait_serving)
        except AssertionError as error:
            self.journal.violation(f"{service.name} does not serve again: {error}")

    # --- links ------------------------------------------------------------------------------

    async def _cut(self, name: str) -> None:
        for proxy in self._links(name):
            await asyncio.to_thread(proxy.cut)

    async def _deaden(self, name: str) -> None:
        for proxy in self._links(name):
            await asyncio.to_thread(proxy.freeze)
        await self._hold(name)
        for proxy in self._links(name):
            await asyncio.to_thread(proxy.thaw)

    def _links(self, name: str) -> list[Proxy]:
        proxies = self.world.stack.proxies
        return [proxies[each] for each in (name, f"{name}/http") if each in proxies]

    # --- Redis ------------------------------------------------------------------------------

    async def _restart_redis(self, _: str) -> None:
        await asyncio.to_thread(self.world.redis.stop)
        await self._hold()
        await asyncio.to_thread(self.world.redis.start)
        await self._stored()

    async def _empty_redis(self, _: str) -> None:
        """All that is stored is lost. Sessions that nobody runs would be lost with it: none may be parked."""
        self.traffic.may_leave = False
        now = time.monotonic()
        await self._until(lambda: self.traffic.all_heard_since(now), "all streams go on")
        await asyncio.to_thread(self.world.redis.stop)
        await asyncio.to_thread(self.world.redis.forget)
        await asyncio.to_thread(self.world.redis.start)
        await self._stored()
        now = time.monotonic()
        await self._until(lambda: self.traffic.all_heard_since(now), "all streams go on")
        await self._stored()
        self.traffic.may_leave = True

    async def _freeze_redis(self, _: str) -> None:
        self.world.redis.freeze()
        await self._hold()
        self.world.redis.thaw()
        await self._stored()

    async def _cut_redis(self, _: str) -> None:
        await asyncio.to_thread(self.world.store.cut)

    async def _slow_redis(self, _: str) -> None:
        self.world.store.delay_s = self.dice.uniform(0.05, 0.4)
        await self._hold()
        self.world.store.delay_s = 0.0
        await self._stored()

    async def _stored(self) -> None:
        """Until no commit is late any more."""

        def caught_up() -> bool:
            return all(
                total(service.metrics(), "outrider_store_degraded") == 0
                for service in self.world.stack.all("verifier")
            )

        await self._until(caught_up, "the store has caught up")

    # --- waiting ----------------------------------------------------------------------------

    async def _hold(self, name: str = "") -> None:
        await asyncio.sleep(self.dice.uniform(*(HOLD_GATEWAY_S if name in GATEWAYS else HOLD_S)))

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SETTLE_S
        while not await asyncio.to_thread(condition):
            if time.monotonic() > deadline:
                self.journal.violation(f"not within {SETTLE_S:g} s: {what}")
                return
            await asyncio.sleep(0.1)
