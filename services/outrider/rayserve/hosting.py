"""One of our services inside a Serve replica: the same coroutine as in a process of its own.

It runs as a task on the event loop of the replica's user code, beside nothing else: calls between services go
to the service's own gRPC server, not through Serve.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import ray
from ray import serve

from outrider.config.processes import favour_latency
from outrider.core.errors import InternalError
from outrider.rayserve.placing import fetch_models

Ready = Callable[[dict[str, str]], None]
Service = Callable[[Ready, asyncio.Event], Coroutine[Any, Any, None]]


class Hosted:
    """A service that has started. Event loop only."""

    def __init__(self, task: asyncio.Task[None], stop: asyncio.Event, addresses: dict[str, str]) -> None:
        self.addresses = addresses
        self._task = task
        self._stop = stop

    @classmethod
    async def start(cls, service: Service) -> Hosted:
        """Run `service` until it is ready.

        Raises:
            OutriderError: what it ended with instead.
        """
        stop = asyncio.Event()
        ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(service(ready.set_result, stop))
        try:
            await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            stop.set()
            raise
        if not ready.done():
            task.result()  # raises, if it went wrong
            raise InternalError("the service ended before it was ready")
        favour_latency()
        return cls(task, stop, ready.result())

    def check(self) -> None:
        """Raises whatever ended the service, if something did."""
        if self._task.done() and not self._stop.is_set():
            self._task.result()
            raise InternalError("the service ended by itself")

    async def stop(self) -> None:
        """Let it drain, and wait for its end. What goes wrong meanwhile is raised."""
        self._stop.set()
        await self._task


class ServiceReplica:
    """What Serve calls of a replica that hosts a service. Its own `__init__` awaits `_start`."""

    _hosted: Hosted | None = None

    async def _start(self, service: Service, log_level: str, models: tuple[str, ...]) -> None:
        """Run `service` until it is ready.

        Args:
            service: to host.
            log_level: of our own log lines.
            models: what it loads; those of the catalogue are fetched first if this node does not have them.

        Raises:
            OutriderError: a model cannot be fetched, or what the service ended with.
        """
        log_with_serve(log_level)
        await asyncio.to_thread(fetch_models, *models)
        self._hosted = await Hosted.start(service)

    def check_health(self) -> None:
        """An error has Serve replace the replica."""
        if self._hosted is not None:
            self._hosted.check()

    async def __del__(self) -> None:
        """Serve lets the replica go: it drains first. Whoever waits for it kills it some time later."""
        if self._hosted is not None:
            await self._hosted.stop()

    def _metadata(self, role: str, name: str = "", *, ranks: int = 1) -> dict[str, Any]:
        """What others can learn of this replica through Serve. Only once it has started."""
        assert self._hosted is not None
        return metadata(role, name, self._hosted.addresses, ranks)


def replica_id() -> str:
    """What Ray calls this replica; no two have had the same one."""
    return str(serve.get_replica_context().replica_id.unique_id)


def metadata(role: str, name: str, addresses: dict[str, str], ranks: int = 1) -> dict[str, Any]:
    """What others can learn of this replica through Serve."""
    return {
        "role": role,
        "name": name,
        "instance_id": replica_id(),
        "node": ray.util.get_node_ip_address(),
        "tensor_parallel": ranks,
        **addresses,
    }


def log_with_serve(level: str) -> None:
    """Our log lines go where Serve's own of this replica go."""
    ours = logging.getLogger("outrider")
    ours.setLevel(level.upper())
    ours.handlers = list(logging.getLogger("ray.serve").handlers)
    ours.propagate = not ours.handlers
