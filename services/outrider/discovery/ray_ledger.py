"""The registry of a Ray Serve application: its deployment `registry`, reached through Serve's own handle.

What stands there is as volatile as its one replica: whoever is alive enters himself again within a heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from opentelemetry import context, trace
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from outrider.core.errors import UnavailableError
from outrider.discovery.entries import EntryReader, field_of, pack
from outrider.discovery.ledger import Page
from outrider.discovery.registry import Instance

DEPLOYMENT = "registry"
"""Its name in the application."""

# Serve begins a trace with each call of a handle: several a second, that nobody wants to see.
_UNTRACED = trace.set_span_in_context(
    trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False, trace_flags=trace.TraceFlags(0)))
)
_log = logging.getLogger(__name__)


class RayLedger:
    """Implements Ledger."""

    def __init__(self, open_handle: Callable[[], Any], *, address: str, timeout_s: float) -> None:
        """Args:
        open_handle: gives a handle of the deployment; called at the first call.
        address: where that is, for messages.
        timeout_s: longest wait for an answer.
        """
        self.address = address
        self._entries = EntryReader(address)
        self._open = open_handle
        self._timeout_s = timeout_s
        self._handle: Any = None

    @classmethod
    def of_this_application(cls, *, timeout_s: float) -> RayLedger:
        """Of the application that this replica is part of. Only inside replicas."""
        app = serve.get_replica_context().app_name
        address = f"ray serve {app}/{DEPLOYMENT}"
        return cls(lambda: serve.get_deployment_handle(DEPLOYMENT, app), address=address, timeout_s=timeout_s)

    async def enter(self, instance: Instance, number: str, *, lease_s: float) -> str:
        """See Ledger."""
        entered, value = await self._ask(
            "enter", field_of(instance), lease_s, instance.instance_id, number, pack(instance)
        )
        if not entered:
            raise UnavailableError(f"another instance ({value}) has entered itself at {instance.address}")
        return str(value)

    async def withdraw(self, instance: Instance) -> None:
        """See Ledger."""
        await self._ask("withdraw", field_of(instance), instance.instance_id)

    async def read(self) -> Page:
        """See Ledger."""
        since, stalled, bodies = await self._ask("read")
        return Page(str(since), bool(stalled), self._entries.read(body.encode() for body in bodies))

    async def close(self) -> None:
        """See Ledger: the handle is Serve's."""

    async def _ask(self, method: str, *arguments: object) -> Any:
        token = context.attach(_UNTRACED)
        try:
            if self._handle is None:
                self._handle = self._open()
            async with asyncio.timeout(self._timeout_s):
                return await getattr(self._handle, method).remote(*arguments)
        except TimeoutError as error:
            text = f"registry {self.address} did not answer within {self._timeout_s:g} s"
            raise UnavailableError(text) from error
        except (RayError, RayServeException, OSError) as error:
            raise UnavailableError(f"registry {self.address} is away: {error}") from error
        finally:
            context.detach(token)
