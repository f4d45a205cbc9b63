"""Services forked from a template process, as their supervisor sees them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from outrider.cli.children import SUPERVISOR_PID
from outrider.cli.template import COMMAND
from outrider.core.errors import UnavailableError

CAN_FORK = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Elsewhere libraries do not stand a fork."""


class TemplateGoneError(UnavailableError):
    """The template has died."""


def ask(link: socket.socket, words: Sequence[str], stdout: int, stderr: int) -> int:
    """Send a template one service to fork; returns the pipe on which it tells pid and exit status.

    Raises:
        TemplateGoneError: there is no template any more.
    """
    told, telling = os.pipe()
    try:
        socket.send_fds(link, [json.dumps(list(words)).encode()], [stdout, stderr, telling])
    except OSError as error:
        os.close(told)
        raise TemplateGoneError(f"the template of services is gone: {error}") from error
    finally:
        os.close(telling)
    return told


def pid_of(line: bytes) -> int:
    """What a template's first line says.

    Raises:
        TemplateGoneError: it has said nothing.
        UnavailableError: it has not forked.
    """
    text = line.decode("utf-8", "replace").strip()
    if not text:
        raise TemplateGoneError("the template of services has not forked: it died")
    if not text.isdecimal():
        raise UnavailableError(f"the template of services has not forked: {text}")
    return int(text)


def status_of(line: bytes) -> int:
    """What a template's second line says; if it died before that, the kernel has killed the child."""
    return int(line) if line.strip() else -signal.SIGKILL


class Forked:
    """A forked service; like `asyncio.subprocess.Process`."""

    def __init__(
        self, pid: int, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader, told: asyncio.StreamReader
    ) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._death = asyncio.create_task(self._wait(told))

    async def wait(self) -> int:
        """Wait for its death; its exit status, negative for a signal."""
        return await asyncio.shield(self._death)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal.

        Raises:
            ProcessLookupError: it is gone.
        """
        os.kill(self.pid, number)

    async def _wait(self, told: asyncio.StreamReader) -> int:
        self.returncode = status_of(await told.readline())
        return self.returncode


class Template:
    """The template process. It is started when it is needed first, and again if it died."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """`env` is the environment of all that it forks."""
        self._env = env
        self._link: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    async def fork(self, words: Sequence[str]) -> Forked:
        """Fork a service that runs the `outrider` command with these words.

        Raises:
            UnavailableError: the template cannot be started, or cannot fork.
        """
        async with self._starting:
            link, process = await self._running(), self._process
        try:
            return await self._forked(link, words)
        except TemplateGoneError:  # its exit status is not here yet
            async with self._starting:
                if self._process is process:
                    await self.close()
                link = await self._running()
            return await self._forked(link, words)

    async def _forked(self, link: socket.socket, words: Sequence[str]) -> Forked:
        outputs = [os.pipe() for _ in range(2)]
        stdout, stderr = [await _reader(read) for read, _ in outputs]
        try:
            told = await _reader(ask(link, words, *(write for _, write in outputs)))
        finally:
            for _, write in outputs:
                os.close(write)  # the last end of a pipe that nobody got: its reader closes itself
        return Forked(pid_of(await told.readline()), stdout, stderr, told)

    async def close(self) -> None:
        """End it, and with it all that it forked."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()

    async def _running(self) -> socket.socket:
        if self._process is not None and self._process.returncode is None:
            assert self._link is not None
            return self._link
        await self.close()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={**self._env, SUPERVISOR_PID: str(os.getpid())},
            )
        return self._link


async def _reader(descriptor: int) -> asyncio.StreamReader:
    """Reads a pipe, and closes it at its end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader
