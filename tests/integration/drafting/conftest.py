"""A drafter over real gRPC on loopback, and a verifier's side of its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from outrider.config.schema import DrafterConfig, OutriderConfig, TelemetryConfig
from outrider.core.rounds import Proposal
from outrider.drafting.server import serve
from outrider.wire import channels, services
from outrider.wire.convert.drafter import command_to_proto, event_from_proto
from outrider.wire.messages import DraftCommand, DrafterLoad, DraftEvent, Draining, Stale
from outrider.wire.v1 import drafter_pb2 as pb


class Link:
    """One stream, as a verifier would hold it."""

    def __init__(self, address: str) -> None:
        self.channel = channels.open_channel(address)
        self.client = services.drafter_client(self.channel)
        self.call = self.client.Draft()
        self.events: list[DraftEvent] = []
        self.loads: list[DrafterLoad] = []

    async def send(self, *commands: DraftCommand | pb.DraftCommand) -> None:
        messages = [
            command if isinstance(command, pb.DraftCommand) else command_to_proto(command)
            for command in commands
        ]
        await self.call.write(pb.DraftRequest(commands=messages))

    async def next(self) -> Proposal | Stale | Draining | None:
        """The next event that is no Load; None: the stream has ended."""
        while not self.events:
            response: Any = await asyncio.wait_for(self.call.read(), 60)
            if not isinstance(response, pb.DraftResponse):
                return None
            for event in map(event_from_proto, response.events):
                (self.loads if isinstance(event, DrafterLoad) else self.events).append(event)
        event = self.events.pop(0)
        assert not isinstance(event, DrafterLoad)
        return event

    async def load(self, accept: Callable[[DrafterLoad], bool]) -> DrafterLoad:
        """The first Load that `accept` likes; other events stay queued."""
        while True:
            while self.loads:
                load = self.loads.pop(0)
                if accept(load):
                    return load
            response: Any = await asyncio.wait_for(self.call.read(), 60)
            for event in map(event_from_proto, response.events):
                (self.loads if isinstance(event, DrafterLoad) else self.events).append(event)

    async def ask(self, command: DraftCommand) -> Proposal | Stale | Draining | None:
        await self.send(command)
        return await self.next()

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()


class RunningDrafter:
    """A drafter in this process's event loop."""

    def __init__(self, task: asyncio.Task[None], stop: asyncio.Event, addresses: dict[str, str]) -> None:
        self.task = task
        self.stop = stop
        self.addresses = addresses
        self.address = addresses["grpc"]

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        link = Link(self.address)
        try:
            yield link
        finally:
            await link.close()


@asynccontextmanager
async def running(
    config: DrafterConfig, telemetry: TelemetryConfig | None = None, target: str = ""
) -> AsyncIterator[RunningDrafter]:
    """`target`: the model that it drafts for, if that is not its own."""
    whole = OutriderConfig(drafters={"mine": config}, telemetry=telemetry or TelemetryConfig())
    target = target or config.model
    if target:
        whole = whole.model_copy(update={"model": target})
    stop = asyncio.Event()
    up: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(whole, "mine", ready=up.set_result, stop=stop))
    await asyncio.wait({task, up}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    try:
        yield RunningDrafter(task, stop, up.result())
    finally:
        stop.set()
        if not task.done():
            await asyncio.wait_for(task, 30)


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[RunningDrafter]]]:
    """Starts a drafter; it is stopped after the test."""
    async with AsyncExitStack() as stack:

        async def begin(
            telemetry: TelemetryConfig | None = None, target: str = "", **fields: Any
        ) -> RunningDrafter:
            config = DrafterConfig(port=0, **fields)
            return await stack.enter_async_context(running(config, telemetry, target))

        yield begin
