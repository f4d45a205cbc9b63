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


def replica_id() -> str:
    """What Ray calls this replica; no two have had the same one."""
    return str(serve.get_replica_context().replica_id.unique_id)


def metadata(role: str, name: str, addresses: dict[str, str], ranks: int = 1) -> dict[str, Any]:
    """What other replicas can learn of this one through Serve."""
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
