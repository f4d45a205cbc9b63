"""One service as a child process: its ready line, its log, its death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

_MAX_LINE = 16 * 1024
_TAIL = 20

LogLine = Callable[[str, str], None]
"""Called with the service's name and a line that it wrote."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What to run, and how patient to be with it."""

    name: str
    command: tuple[str, ...]
    max_pause_s: float = 5.0  # longest pause before it is started again
    stop_order: int = 0  # lower ones are told to stop first; the next when they are dead
    words: tuple[str, ...] = ()  # of the `outrider` command, if a template may fork it; see `template`


class Process(Protocol):
    """What `asyncio.subprocess.Process` and `forking.Forked` have in common."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    @property
    def stdout(self) -> asyncio.StreamReader | None: ...

    @property
    def stderr(self) -> asyncio.StreamReader | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: signal.Signals, /) -> None: ...


class Child:
    """A running process. Its ready line is one line of JSON on stdout with `"ready": true`."""

    def __init__(self, spec: ServiceSpec, process: Process, log: LogLine) -> None:
        self.spec = spec
        self.pid = process.pid
        self.addresses: dict[str, str] = {}
        self.ready = asyncio.Event()
        self.tail: deque[str] = deque(maxlen=_TAIL)  # of its log, for error messages
        self._process = process
        self._log = log
        self._readers = [asyncio.create_task(self._read_stdout()), asyncio.create_task(self._read_stderr())]

    @classmethod
    async def start(cls, spec: ServiceSpec, env: Mapping[str, str], log: LogLine) -> Child:
        """Start the process, in a session of its own: a Ctrl-C in the terminal reaches only us."""
        process = await asyncio.create_subprocess_exec(
            *spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**env, SUPERVISOR_PID: str(os.getpid())},
        )
        return cls(spec, process, log)

    async def wait(self) -> int:
        """Wait for its death and the end of its log; returns the exit status, negative for a signal."""
        status = await self._process.wait()
        # A grandchild may hold the pipes open: the log is not worth waiting for it.
        _, late = await asyncio.wait(self._readers, timeout=1.0)
        for reader in late:
            reader.cancel()
        return status

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a process that is gone is no error."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read_stdout(self) -> None:
        async for line in _lines(self._process.stdout):
            addresses = None if self.ready.is_set() else _ready_line(line)
            if addresses is None:
                self._log(self.spec.name, line)
            else:
                self.addresses = addresses
                self.ready.set()

    async def _read_stderr(self) -> None:
        async for line in _lines(self._process.stderr):
            self.tail.append(line)
            self._log(self.spec.name, line)


SUPERVISOR_PID = "OUTRIDER_SUPERVISOR_PID"
"""Environment variable that tells a child whose death it must not survive."""


def death_of(status: int) -> str:
    """Exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def end_of(status: int) -> str:
    """What became of a service that nobody here told to stop: SIGTERM makes it stop by itself."""
    return "has stopped" if status == 0 else f"died: {death_of(status)}"


def _ready_line(line: str) -> dict[str, str] | None:
    if not line.startswith("{"):
        return None
    try:
        data = json.loads(line)
    except ValueError:
        return None
    if not isinstance(data, dict) or data.get("ready") is not True:
        return None
    return {key: value for key, value in data.items() if isinstance(value, str)}


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[str]:
    """Lines of a stream, of any length: what is longer than the limit comes in pieces."""
    assert stream is not None
    rest = b""
    while chunk := await stream.read(_MAX_LINE):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")
    if rest:
        yield rest.decode("utf-8", "replace")
