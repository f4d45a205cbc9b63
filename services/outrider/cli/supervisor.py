"""Keeps the services of a local stack alive, and takes them all down with itself."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.cli.children import Child, LogLine, ServiceSpec, death_of, end_of
from outrider.cli.forking import CAN_FORK, Template
from outrider.core.errors import UnavailableError

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
HEALTHY_AFTER_S = 10.0
"""A child that lived this long is started again without a longer pause than the first time."""


@dataclass(frozen=True, slots=True)
class Running:
    """A service that is ready."""

    name: str
    pid: int
    addresses: Mapping[str, str]


class Supervisor:
    """Starts every service at once; starts again whichever dies after it was ready.

    A service that dies before it was ever ready ends the whole start: that is a wrong
    configuration, and starting it again would only hide what it said.
    """

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        env: Mapping[str, str],
        log_line: LogLine,
        *,
        on_restart: Callable[[Running], None] | None = None,
        start_timeout_s: float = 300.0,
        grace_s: float,
    ) -> None:
        self._specs = specs
        self._env = env
        self._log_line = log_line
        self._on_restart = on_restart
        self._start_timeout_s = start_timeout_s
        self._grace_s = grace_s
        self._children: dict[str, Child] = {}
        self._were_ready = {spec.name: asyncio.Event() for spec in specs}
        self._stopping = False
        self._template = Template(env)

    async def run(
        self, stop: asyncio.Event, on_ready: Callable[[dict[str, Running]], None] | None = None
    ) -> None:
        """Run until `stop` is set; every child is dead when this returns, however it returns.

        Raises:
            UnavailableError: a service died before it was ready, or was not ready in time.
        """
        keepers = [asyncio.create_task(self._keep(spec)) for spec in self._specs]
        stopped = asyncio.create_task(stop.wait())
        try:
            if await self._all_ready(keepers, stopped):
                if on_ready is not None:
                    on_ready(self._running())
                await asyncio.wait([stopped, *keepers], return_when=asyncio.FIRST_COMPLETED)
                _raise_first(keepers)
        finally:
            stopped.cancel()
            await self._take_down(keepers)

    def kill(self) -> None:
        """Do not wait for anybody any more."""
        for child in self._children.values():
            child.send(signal.SIGKILL)

    async def _all_ready(self, keepers: Sequence[asyncio.Task[None]], stopped: asyncio.Task[bool]) -> bool:
        """Wait for the first ready line of each; False if told to stop before."""
        waits = (event.wait() for event in self._were_ready.values())
        ready: asyncio.Future[Any] = asyncio.gather(*waits)
        try:
            waited: list[asyncio.Future[Any]] = [ready, stopped, *keepers]
            await asyncio.wait(waited, timeout=self._start_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            _raise_first(keepers)
            if stopped.done():
                return False
            if not ready.done():
                late = [name for name, event in self._were_ready.items() if not event.is_set()]
                raise UnavailableError(f"not ready after {self._start_timeout_s:g} s: {', '.join(late)}")
            return True
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)  # its cancellation has been seen

    async def _keep(self, spec: ServiceSpec) -> None:
        pause = FIRST_PAUSE_S
        while not self._stopping:
            lived = await self._live_once(spec)
            if self._stopping:
                return
            pause = FIRST_PAUSE_S if lived > HEALTHY_AFTER_S else pause
            pause = min(pause, spec.max_pause_s)
            log.warning("%s is started again in %.1f s", spec.name, pause)
            await asyncio.sleep(pause)
            pause *= 2

    async def _live_once(self, spec: ServiceSpec) -> float:
        """Start the service and wait for its death; returns how long it was ready, in seconds."""
        clock = asyncio.get_running_loop().time
        child = await self._start(spec)
        self._children[spec.name] = child
        death = asyncio.create_task(child.wait())
        ready = asyncio.create_task(child.ready.wait())
        await asyncio.wait([death, ready], return_when=asyncio.FIRST_COMPLETED)
        since = clock()
        if ready.done():
            self._is_ready(child)
        ready.cancel()
        status = await death
        if self._stopping:
            return 0.0
        if not self._were_ready[spec.name].is_set():
            said = "\n  ".join(child.tail) or "nothing"
            raise UnavailableError(f"{spec.name} did not start ({death_of(status)}); it said:\n  {said}")
        log.warning("%s (pid %d) %s", spec.name, child.pid, end_of(status))
        return clock() - since if child.ready.is_set() else 0.0

    async def _start(self, spec: ServiceSpec) -> Child:
        """Fork it where that can be done: it is ready seconds sooner."""
        if spec.words and CAN_FORK:
            try:
                return Child(spec, await self._template.fork(spec.words), self._log_line)
            except UnavailableError as error:
                log.warning("%s is started by itself: %s", spec.name, error)
        return await Child.start(spec, self._env, self._log_line)

    def _is_ready(self, child: Child) -> None:
        first = not self._were_ready[child.spec.name].is_set()
        self._were_ready[child.spec.name].set()
        where = " ".join(f"{key}={value}" for key, value in child.addresses.items() if key != "service")
        log.info("%s (pid %d) is ready: %s", child.spec.name, child.pid, where)
        if not first and self._on_restart is not None:
            self._on_restart(_describe(child))

    def _running(self) -> dict[str, Running]:
        return {name: _describe(self._children[name]) for name in self._were_ready}

    async def _take_down(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        """SIGTERM in stop order; SIGKILL to whoever is still there when the grace period is over."""
        self._stopping = True
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._grace_s
        for order in sorted({spec.stop_order for spec in self._specs}):
            children = [child for child in self._children.values() if child.spec.stop_order == order]
            await _stop(children, max(0.0, deadline - clock()))
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        self.kill()  # one that was just being started again when the others were told to stop
        await asyncio.gather(*(child.wait() for child in self._children.values()))
        await self._template.close()


async def _stop(children: Sequence[Child], grace_s: float) -> None:
    for child in children:
        child.send(signal.SIGTERM)
        child.send(signal.SIGCONT)  # a frozen one must wake up to hear it
    deaths = {asyncio.create_task(child.wait()): child for child in children}
    if not deaths:
        return
    _, alive = await asyncio.wait(deaths, timeout=grace_s)
    for death in alive:
        log.warning("%s did not stop in time and is killed", deaths[death].spec.name)
        deaths[death].send(signal.SIGKILL)
    if alive:
        await asyncio.wait(alive)


def _describe(child: Child) -> Running:
    return Running(child.spec.name, child.pid, dict(child.addresses))


def _raise_first(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()
