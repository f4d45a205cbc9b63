"""What a server is asked: round trips and commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis


@asynccontextmanager
async def turn_counter(port: int) -> AsyncIterator[tuple[int, list[int]]]:
    """A relay to `port` that counts turns: requests that begin after a reply, on one connection."""
    turns: list[int] = [0]
    pumps: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        last = "reply"

        async def pump(name: str, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            nonlocal last
            while data := await source.read(65536):
                turns[0] += name == "request" and last == "reply"
                last = name
                target.write(data)
                await target.drain()
            target.close()

        for task in (
            asyncio.create_task(pump("request", reader, up_writer)),
            asyncio.create_task(pump("reply", up_reader, writer)),
        ):
            pumps.add(task)

    relay = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield relay.sockets[0].getsockname()[1], turns
    finally:
        relay.close()
        await asyncio.wait_for(asyncio.gather(*pumps), 30)


async def calls(admin: Redis) -> dict[str, int]:
    stats = await admin.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
