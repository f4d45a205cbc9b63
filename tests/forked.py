"""Services forked from one template process, whose imports all stacks of a test run share."""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
from functools import cache

from outrider.cli.forking import ask, pid_of, status_of
from outrider.cli.template import COMMAND

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}


class Forked:
    """One service; like `subprocess.Popen`."""

    def __init__(self, words: list[str], told: int) -> None:
        self._words = words
        self._told = os.fdopen(told, "rb", buffering=0)
        self.pid = pid_of(self._told.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None: it lives."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its death.

        Raises:
            subprocess.TimeoutExpired: it lives on.
        """
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._words, timeout)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens if it is dead."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _end(self) -> None:
        self.returncode = status_of(self._told.readline())
        self._told.close()


class Template:
    """The process that forks them."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )
        atexit.register(self._close)

    def fork(self, words: list[str], output: int) -> Forked:
        """A process that runs the `outrider` command with these words, and writes to `output`."""
        return Forked(words, ask(self._link, words, output, output))

    def _close(self) -> None:
        self._link.close()
        self._process.wait()


@cache
def template() -> Template:
    """The one of this test run, with its environment of the first call."""
    return Template()
