"""A drafter enters itself, tells its load, says that it drains, and is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outrider.config import OutriderConfig
from outrider.config.schema import DrafterConfig
from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.discovery import Instance, LeaseRegistry, Load, Role
from outrider.drafting.server import serve
from outrider.wire import convert
from outrider.wire.channels import open_channel
from outrider.wire.messages import OpenDraft
from outrider.wire.services import drafter_client
from outrider.wire.v1 import drafter_pb2 as pb
from tests.integration.discovery.conftest import until


@asynccontextmanager
async def drafter(config: OutriderConfig, **own: object) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Served here; yields its address, and what stops it."""
    settings = DrafterConfig.model_validate({"method": "prompt_lookup", "port": 0, **own})
    ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    whole = config.model_copy(update={"drafters": {"lookup": settings}})
    task = asyncio.create_task(serve(whole, "lookup", ready=ready.set_result, stop=stop))
    await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    try:
        yield ready.result()["grpc"], stop
    finally:
        stop.set()
        await task


async def listed(registry: LeaseRegistry) -> list[Instance]:
    return list(await registry.list(Role.DRAFTER, "lookup"))


async def test_a_drafter_that_is_ready_is_listed_and_one_that_ended_is_not(
    config: OutriderConfig, registry: LeaseRegistry
) -> None:
    async with drafter(config) as (first, _):
        (only,) = await listed(registry)
        assert (only.address, only.draining) == (first, False)
        async with drafter(config) as (second, _):
            assert {one.address for one in await listed(registry)} == {first, second}
        (left,) = await listed(registry)
        assert left.instance_id == only.instance_id != ""
    assert await listed(registry) == []


async def test_the_load_that_is_listed_is_the_drafters(
    config: OutriderConfig, registry: LeaseRegistry
) -> None:
    async with drafter(config, max_sessions=7) as (address, _), open_channel(address) as channel:
        call = drafter_client(channel).Draft()
        command = OpenDraft("s", 1, (1, 2, 3), SamplingParams(), 0)
        await call.write(pb.DraftRequest(commands=[convert.command_to_proto(command)]))

        async def told() -> bool:
            (one,) = await listed(registry)
            return one.load == Load(running=1, waiting=0, capacity=7)

        await until(told)
        call.cancel()


async def test_a_drafter_that_stops_is_listed_as_draining_while_its_streams_move_on(
    config: OutriderConfig, registry: LeaseRegistry
) -> None:
    seen: list[bool] = []
    async with drafter(config) as (address, stop), open_channel(address) as channel:
        call = drafter_client(channel).Draft()
        await call.read()  # its load
        stop.set()

        async def drained() -> bool:
            seen.extend(one.draining for one in await listed(registry))
            return bool(seen) and seen[-1]

        await until(drained)
        call.cancel()
    assert await listed(registry) == []


async def test_an_address_that_others_cannot_use_stops_the_start(config: OutriderConfig) -> None:
    with pytest.raises(ConfigError, match=r"drafters\.lookup\.advertise must be set"):
        async with drafter(config, host="0.0.0.0"):
            pass
    async with drafter(config, host="0.0.0.0", advertise="127.0.0.1:0") as (address, _):
        assert address.startswith("0.0.0.0:")
