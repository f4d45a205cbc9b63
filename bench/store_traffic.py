"""What the session store costs: commands, round trips and bytes of a step, against a real server. No times.

    python -m bench.store_traffic [--sessions 1 2 4 8 16 32 64] [--steps 50] [--tokens 3] [--cluster]

From the top folder. Each line is one count of sessions in a step and one kind of step:

- go on           every session commits `--tokens` tokens
- begin and end   a quarter of them is new, a quarter ends at a stop string, the others go on

Commands are what the server counts; round trips and bytes are counted on the wire, by a relay. With
`--cluster` a Cluster of three nodes is asked, and only commands are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table
from tests.integration.sessions.groups import cluster
from tests.servers import RedisServer, redis_server

from outrider.benchmark.provenance import provenance
from outrider.core.params import SamplingParams, StopParams
from outrider.core.sessions import Commit, FinishReason, SessionRecord
from outrider.sessions.pending import Create, Truncate, Write
from outrider.sessions.performing import perform
from outrider.sessions.redis import RedisStore

PROMPT = tuple(range(100))
Numbers = Callable[[], Awaitable[int]]


@dataclass(slots=True)
class Wire:
    """What went over a relay."""

    port: int = 0
    sent: int = 0
    received: int = 0
    turns: int = 0  # requests that begin after a reply: round trips


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[Wire]:
    """A port in front of a server."""
    wire = Wire()
    pumps: set[asyncio.Task[None]] = set()

    async def pump(
        source: asyncio.StreamReader, target: asyncio.StreamWriter, up: bool, last: list[bool]
    ) -> None:
        while data := await source.read(2**20):
            if up:
                wire.sent += len(data)
                wire.turns += not last[0]
            else:
                wire.received += len(data)
            last[0] = up
            target.write(data)
            await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        last = [False]
        pumps.add(asyncio.create_task(pump(reader, up_writer, True, last)))
        pumps.add(asyncio.create_task(pump(up_reader, writer, False, last)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        await asyncio.gather(*pumps)


class Sessions:
    """As many as a step has, and what they write in each."""

    def __init__(self, number: int, tokens: int) -> None:
        self._fresh = count()
        self._tokens = tokens
        self._lengths = {self._name(): 0 for _ in range(number)}

    def _name(self) -> str:
        return f"outrider-{next(self._fresh):027d}"  # as long as a real one

    def begin(self) -> list[Write]:
        """All of them."""
        return [Create(_record(name)) for name in self._lengths]

    def go_on(self) -> list[Write]:
        """Every one commits."""
        return [self._commit(name) for name in self._lengths]

    def begin_and_end(self) -> list[Write]:
        """A quarter ends, as many begin, the others commit."""
        names = list(self._lengths)
        ending = names[: len(names) // 4]
        writes: list[Write] = [
            Truncate(name, 1, max(self._lengths.pop(name) - 1, 0), FinishReason.STOP) for name in ending
        ]
        writes += self.go_on()
        for _ in ending:
            self._lengths[name := self._name()] = 0
            writes.append(Create(_record(name)))
        return writes

    def _commit(self, name: str) -> Commit:
        base = self._lengths[name]
        self._lengths[name] += self._tokens
        return Commit(name, 1, base, tuple(range(base, base + self._tokens)))


def _record(name: str) -> SessionRecord:
    return SessionRecord(name, PROMPT, SamplingParams(seed=1), StopParams(10_000))


async def measure(
    store: RedisStore, wire: Wire | None, commands: Numbers, options: Any, number: int
) -> list[dict[str, Any]]:
    """The two kinds of steps with `number` sessions."""
    rows = []
    for kind in ("go on", "begin and end"):
        sessions = Sessions(number, options.tokens)
        await write(store, sessions.begin())
        before, wire_before = await commands(), vars_of(wire)
        for _ in range(options.steps):
            writes = sessions.go_on() if kind == "go on" else sessions.begin_and_end()
            await write(store, writes)
        wire_after = vars_of(wire)
        row: dict[str, Any] = {
            "step": kind,
            "sessions": number,
            "commands_per_step": round((await commands() - before) / options.steps, 3),
        }
        if wire is not None:
            sent, received, turns = (b - a for a, b in zip(wire_before, wire_after, strict=True))
            row["round_trips_per_step"] = round(turns / options.steps, 3)
            row["bytes_sent_per_step"] = round(sent / options.steps)
            row["bytes_received_per_step"] = round(received / options.steps)
            if kind == "go on":
                row["bytes_per_token"] = round((sent + received) / options.steps / number / options.tokens, 1)
        rows.append(row)
    return rows


def vars_of(wire: Wire | None) -> tuple[int, int, int]:
    """Its counts."""
    return (0, 0, 0) if wire is None else (wire.sent, wire.received, wire.turns)


async def write(store: RedisStore, writes: list[Write]) -> None:
    """One step, as the commit writer does it. Raises what went wrong."""
    for result in await perform(store, writes):
        if result is not None:
            raise result


async def scripts_run(servers: list[RedisServer]) -> int:
    """Calls of scripts that servers have counted; nothing else is asked of them here."""
    total = 0
    for server in servers:
        client = Redis.from_url(server.url, protocol=2)
        stats = await client.info("commandstats")
        await client.aclose()
        total += sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))
    return total


async def on_one(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Against one server."""
    with redis_server() as server:
        async with relay(server.port) as wire:
            store = RedisStore(f"redis://127.0.0.1:{wire.port}/0", timeout_s=30.0)
            await write(store, Sessions(1, 1).begin())  # connects, loads the script
            rows = []
            for number in options.sessions:
                await flush(server)
                rows += await measure(store, wire, lambda: scripts_run([server]), options, number)
            await store.close()
    return rows


async def flush(server: RedisServer) -> None:
    """Forget all sessions, but not the scripts."""
    client = Redis.from_url(server.url, protocol=2)
    await client.flushall()
    await client.aclose()


async def on_cluster(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Against three nodes."""
    async with cluster() as group:
        store = RedisStore(group.url, timeout_s=30.0)
        warm = Sessions(64, 1)
        await write(store, warm.begin())
        rows = []
        for number in options.sessions:
            for node in group.masters:
                await flush(node)
            rows += await measure(store, None, lambda: scripts_run(group.masters), options, number)
        await store.close()
    return rows


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print the rows."""
    table = Table(title=title)
    names = list(rows[0])
    for name in names:
        table.add_column(name.replace("_", " "), justify="left" if name == "step" else "right")
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in names))
    Console(width=130).print(table)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=3, help="of a session in a step")
    parser.add_argument("--cluster", action="store_true", help="ask a Cluster of three nodes")
    parser.add_argument(
        "--jsonl", type=Path, help="write the rows here; default bench/out/store_traffic*.jsonl"
    )
    options = parser.parse_args()
    place = "cluster" if options.cluster else "one server"
    rows = asyncio.run(on_cluster(options) if options.cluster else on_one(options))
    show(rows, f"Session store, {place}: {options.tokens} tokens of each session in a step")
    name = "store_traffic_cluster.jsonl" if options.cluster else "store_traffic.jsonl"
    path = options.jsonl or Path(__file__).resolve().parent / "out" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [*rows, {"provenance": provenance()}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
