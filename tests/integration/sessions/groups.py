"""Real servers together: a Cluster, and a master with a replica that sentinels watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from redis import exceptions
from redis.asyncio import Redis

from tests.servers import RedisServer, free_port, server_binary

START_S = 60.0


async def ask(server: RedisServer, *command: str | int) -> Any:
    """One command, from outside."""
    client = Redis.from_url(server.url, protocol=2)
    try:
        return await client.execute_command(*command)
    finally:
        await client.aclose()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until it holds; a server that is away says no."""
    async with asyncio.timeout(START_S):
        while True:
            with suppress(exceptions.RedisError, OSError):
                if await condition():
                    return
            await asyncio.sleep(0.02)


class Cluster:
    """Masters that share the slots, and one replica of the first."""

    def __init__(self, masters: list[RedisServer], replica: RedisServer) -> None:
        self.masters = masters
        self.replica = replica

    @property
    def url(self) -> str:
        """For StoreConfig.url: two of the nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.masters[:2])

    async def join(self) -> None:
        """Make them one Cluster, and wait until all of them say so."""
        for index, node in enumerate(self.masters):
            low, high = (16384 * index // len(self.masters), 16384 * (index + 1) // len(self.masters) - 1)
            await ask(node, "CLUSTER", "ADDSLOTSRANGE", low, high)
        first = self.masters[0]
        for node in (*self.masters[1:], self.replica):
            await ask(first, "CLUSTER", "MEET", "127.0.0.1", node.port, self._bus(node))
        known = len(self.masters) + 1
        for node in (*self.masters, self.replica):
            await until(lambda node=node: self._says(node, "INFO", f"cluster_known_nodes:{known}"))
        name = (await ask(first, "CLUSTER", "MYID")).decode()
        await ask(self.replica, "CLUSTER", "REPLICATE", name)
        await until(lambda: self._linked())
        for node in (*self.masters, self.replica):
            await until(lambda node=node: self._says(node, "INFO", "cluster_state:ok"))

    async def take_over(self) -> None:
        """The replica becomes the first part's master, whatever the old one says."""
        await ask(self.replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        await until(lambda: self._says(self.replica, "NODES", "myself,master"))

    @staticmethod
    def _bus(node: RedisServer) -> int:
        options = node._options
        return int(options[options.index("--cluster-port") + 1])

    @staticmethod
    async def _says(node: RedisServer, what: str, text: str) -> bool:
        return text.encode() in await ask(node, "CLUSTER", what)

    async def _linked(self) -> bool:
        return (await ask(self.replica, "INFO", "replication"))["master_link_status"] == "up"


def _node() -> RedisServer:
    # Left to itself, a node takes its port + 10000 for the bus, which may be past the last port.
    return RedisServer(
        "--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "2000",
        "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0",
        "--cluster-replica-no-failover", "yes",
    )  # fmt: skip


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """Three masters and a replica, joined."""
    nodes = [_node() for _ in range(4)]
    try:
        for node in nodes:
            node.start()
        group = Cluster(nodes[:3], nodes[3])
        await group.join()
        yield group
    finally:
        for node in nodes:
            node.close()


class Watched:
    """A master, a replica, and sentinels that know the pair as `main`."""

    def __init__(self, master: RedisServer, replica: RedisServer, sentinels: list[SentinelServer]) -> None:
        self.master, self.replica, self.sentinels = master, replica, sentinels

    def url(self, login: str = "", options: str = "") -> str:
        """For StoreConfig.url."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{login}{hosts}/main/0{options}"

    async def ready(self) -> None:
        """All sentinels see the replica and each other."""
        for sentinel in self.sentinels:
            await until(sentinel.sees_all)

    async def fail_over(self) -> None:
        """The sentinels promote the replica; returns when it is the master."""
        await ask(self.sentinels[-1], "SENTINEL", "FAILOVER", "main")
        await until(self._promoted)

    async def settled(self) -> None:
        """The old master has become a replica of the new one."""
        await until(self._demoted)

    async def _demoted(self) -> bool:
        return (await ask(self.master, "INFO", "replication"))["role"] == "slave"

    async def _promoted(self) -> bool:
        return (await ask(self.replica, "INFO", "replication"))["role"] == "master"


class SentinelServer(RedisServer):
    """A sentinel; it writes its findings to a file in its folder."""

    def __init__(self, master: RedisServer, others: int, password: str = "") -> None:
        super().__init__(password=password)
        self._others = others
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor main 127.0.0.1 {master.port} 1",
            "sentinel down-after-milliseconds main 1000",
            "sentinel failover-timeout main 5000",
            *([f"requirepass {password}"] if password else []),
        ]
        self._file = Path(self._folder.name) / "sentinel.conf"
        self._file.write_text("\n".join(lines) + "\n")

    def _command(self) -> list[str]:
        return [server_binary(), str(self._file), "--sentinel"]

    async def sees_all(self) -> bool:
        """Whether it has found the replica and the other sentinels."""
        client = Redis.from_url(self.url, protocol=2)
        try:
            state = (await client.sentinel_masters())["main"]
        finally:
            await client.aclose()
        return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == self._others)


@asynccontextmanager
async def watched(*options: str, sentinels: int = 3, password: str = "") -> AsyncIterator[Watched]:
    """A master, its replica and sentinels. `options`: of the two servers; `password`: of the sentinels."""
    common = ("--repl-diskless-sync-delay", "0", *options)
    started: list[RedisServer] = []
    try:
        master = RedisServer(*common)
        replica = RedisServer("--replicaof", f"127.0.0.1 {master.port}", *common)
        watchers = [SentinelServer(master, sentinels - 1, password) for _ in range(sentinels)]
        for server in (master, replica, *watchers):
            started.append(server)
            server.start()
        group = Watched(master, replica, watchers)
        await group.ready()
        yield group
    finally:
        for server in started:
            server.close()
