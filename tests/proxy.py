"""A TCP proxy whose link can be cut, frozen, slowed down or replayed, for fault tests.

    with Proxy("127.0.0.1:9100") as proxy:
        ...                      # clients connect to proxy.address
        proxy.cut()              # every connection is reset; new ones are taken
        proxy.freeze()           # connections stay open, and nothing comes through, until proxy.thaw()

It runs in a thread of its own, so a test's event loop may be as busy as it likes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

CHUNK = 65_536
IN_FLIGHT = 64
"""Chunks of one direction that a delay may hold."""
CONTROL_TIMEOUT_S = 20.0
CLOSE_S = 1.0
"""For connections to come to their end by themselves."""
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset


class Proxy:
    """Forwards connections to one address. Its methods may be called from any thread."""

    def __init__(self, target: str, *, record: bool = False) -> None:
        """`target` is host:port; `record` keeps what clients send, for `replay`."""
        self.target = target
        self.recorded: list[bytearray] = []
        self.delay_s = 0.0  # added to every chunk, in each direction
        self.bytes_per_s = 0.0  # of each connection and direction; 0: no bound
        self.address = ""  # host:port, once started
        self.taken = 0  # connections so far, those that were refused included
        self._record = record
        self._refusing = False
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_TIMEOUT_S)
        self._loop.close()

    def cut(self) -> None:
        """Reset all connections that there are, on both sides. New ones are taken."""
        self._do(self._cut())

    def refuse(self) -> None:
        """Reset all connections, and new ones as soon as they come, until `accept`."""
        self._refusing = True
        self.cut()

    def accept(self) -> None:
        """Take connections again."""
        self._refusing = False

    def freeze(self) -> None:
        """Keep all connections open, take new ones, and forward nothing, until `thaw`."""
        self._do(self._open_gate(False))

    def thaw(self) -> None:
        """Forward again, first of all what was held back."""
        self._do(self._open_gate(True))

    def half_close(self) -> None:
        """End the clients' half of all connections: servers read the end, and may still answer."""
        self._do(self._half_close())

    def heal(self) -> None:
        """Forward everything at once, as at first."""
        self.delay_s, self.bytes_per_s = 0.0, 0.0
        self.accept()
        self.thaw()

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._links)

    def replay(self, index: int, *, listen_s: float = 1.0) -> bytes:
        """Send what the client of the `index`th connection has sent to the server once more, as a new one.

        Returns what the server answers, until it closes or has been silent for `listen_s`.
        """
        assert self._record, "nothing is recorded"
        host, port = _split(self.target)
        answer = b""
        with socket.create_connection((host, port), timeout=listen_s) as again:
            again.sendall(bytes(self.recorded[index]))
            try:
                while piece := again.recv(CHUNK):
                    answer += piece
            except (TimeoutError, ConnectionResetError):
                pass
        return answer

    def _do(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CONTROL_TIMEOUT_S)

    async def _listen(self) -> None:
        self._gate = asyncio.Event()
        self._gate.set()
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        if self._refusing:
            _reset(writer)
            return
        try:
            there = await asyncio.open_connection(*_split(self.target))
        except (OSError, asyncio.CancelledError):
            _reset(writer)
            return
        if self._refusing:  # since this one came
            _reset(writer)
            _reset(there[1])
            return
        record = bytearray()
        if self._record:
            self.recorded.append(record)
        link = _Link(self, self._gate, (reader, writer), there, record if self._record else None)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def _cut(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _half_close(self) -> None:
        for link in list(self._links):
            link.half_close()

    async def _open_gate(self, wide: bool) -> None:
        if wide:
            self._gate.set()
        else:
            self._gate.clear()

    async def _close(self) -> None:
        """No connection may be left to the garbage collector, nor one that came just now."""
        self._refusing = True
        self._server.close()
        await self._cut()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection: the client's end and the server's end."""

    def __init__(
        self, proxy: Proxy, gate: asyncio.Event, here: Ends, there: Ends, record: bytearray | None
    ) -> None:
        self._proxy, self._gate, self._record = proxy, gate, record
        self._here, self._there = here, there
        self._task = asyncio.current_task()

    async def run(self) -> None:
        """Forward until both directions have ended, or the link is broken off."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._forward(tasks, self._here[0], self._there[1], self._record)
                self._forward(tasks, self._there[0], self._here[1], None)
        except* (OSError, asyncio.CancelledError):
            _reset(self._here[1])
            _reset(self._there[1])
        else:
            self._here[1].close()
            self._there[1].close()

    def reset(self) -> None:
        """Break both ends off."""
        if self._task is not None:
            self._task.cancel()

    def half_close(self) -> None:
        """No more from the client."""
        self._here[1].transport.pause_reading()  # type: ignore[attr-defined]  # sockets can
        self._here[0].feed_eof()

    def _forward(
        self,
        tasks: asyncio.TaskGroup,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        record: bytearray | None,
    ) -> None:
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(IN_FLIGHT)
        tasks.create_task(self._read(reader, held, record))
        tasks.create_task(self._deliver(held, writer))

    async def _read(
        self,
        reader: asyncio.StreamReader,
        held: asyncio.Queue[tuple[float, bytes]],
        record: bytearray | None,
    ) -> None:
        while True:
            data = await reader.read(CHUNK)
            if record is not None:
                record += data
            await held.put((asyncio.get_running_loop().time() + self._proxy.delay_s, data))
            if not data:
                return

    async def _deliver(self, held: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due, data = await held.get()
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            await self._gate.wait()
            if not data:
                writer.write_eof()
                return
            if self._proxy.bytes_per_s:
                await asyncio.sleep(len(data) / self._proxy.bytes_per_s)
            writer.write(data)
            await writer.drain()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _reset(writer: asyncio.StreamWriter) -> None:
    one = writer.get_extra_info("socket")
    if one is not None and one.fileno() >= 0:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
