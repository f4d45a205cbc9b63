"""The template of a stack's services: a process that has imported everything, and forks them.

Importing torch and transformers takes seconds of every service's start. Here it is done once, so a service
that died is back in the time that its model takes to load. What was imported is also in memory only once.

A fork copies one thread only, so there must be no others, nor anything that belongs to a device: the
process imports, waits, forks, and does nothing else. On its standard input it has a socket
(SOCK_SEQPACKET). A message is one service: the words of its `outrider` command as JSON, and three
descriptors: where its stdout and stderr go, and a pipe that is told its pid (a line, or why there is
none), and its exit status (a line, as `subprocess` has it) when it is dead. When the socket is closed,
the template ends, and with it all that it forked.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import socket
import sys
from pathlib import Path

from outrider.cli.children import SUPERVISOR_PID
from outrider.cli.service import die_with_supervisor

COMMAND = (sys.executable, "-m", "outrider.cli.template")
MAX_REQUEST = 64 * 1024
"""Bytes of a message."""
IMPORTED = (
    "outrider.cli.main",
    "outrider.gateway.server",
    "outrider.drafting.server",
    "outrider.drafting.foreign.building",
    "outrider.drafting.heads.building",
    "outrider.drafting.heads.medusa_building",
    "outrider.drafting.model.draft_model",
    "outrider.verifying.server",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
)
"""What services need and are slow to import; the modules of other architectures than llama's load quickly."""

_NUMPY_THREADS = "OPENBLAS_NUM_THREADS"


class Forks:
    """The services that were forked here and live."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._selector = selectors.DefaultSelector()
        self._selector.register(link, selectors.EVENT_READ)
        self._alive: dict[int, tuple[int, int]] = {}  # by pidfd: pid, and the pipe that is told of its end

    def run(self) -> list[str] | None:
        """Fork what is asked for. Returns in each child, with the words of its command; None: that is all."""
        while True:
            for key, _ in self._selector.select():
                if key.fd != self._link.fileno():
                    self._reap(key.fd)
                    continue
                message, descriptors, _, _ = socket.recv_fds(self._link, MAX_REQUEST, 3)
                if not message:
                    return None
                words: list[str] = json.loads(message)
                if self._fork(descriptors):
                    return words

    def _fork(self, descriptors: list[int]) -> bool:
        """True in the child."""
        *outputs, told = descriptors
        if (threads := len(list(Path("/proc/self/task").iterdir()))) != 1:
            _tell(told, f"the template has {threads} threads, of which a fork would copy one")
            _close(descriptors)
            return False
        pid = os.fork()
        if pid == 0:
            self._become_service(outputs)
            _close(descriptors)
            return True
        _tell(told, str(pid))
        _close(outputs)
        pidfd = os.pidfd_open(pid)
        self._alive[pidfd] = (pid, told)
        self._selector.register(pidfd, selectors.EVENT_READ)
        return False

    def _become_service(self, outputs: list[int]) -> None:
        """In the child: keep nothing that is the template's, and lead a session of our own."""
        os.setsid()
        os.environ[SUPERVISOR_PID] = str(os.getppid())
        self._selector.close()
        self._link.close()
        for pidfd, (_, told) in self._alive.items():
            _close([pidfd, told])
        for descriptor, number in zip(outputs, (1, 2), strict=True):
            os.dup2(descriptor, number)

    def _reap(self, pidfd: int) -> None:
        pid, told = self._alive.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(pidfd)
        _tell(told, str(os.waitstatus_to_exitcode(status)))
        _close([pidfd, told])


def _tell(pipe: int, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # who asked does not listen any more
        os.write(pipe, f"{line}\n".encode())


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _link_on_stdin() -> socket.socket:
    """The socket that came as standard input, which is /dev/null from now on."""
    link = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return link


def _import() -> None:
    """All that services need, without starting threads. Numpy's algebra, which nobody uses, would do so."""
    os.environ[_NUMPY_THREADS] = "1"
    for module in IMPORTED:
        importlib.import_module(module)
    del os.environ[_NUMPY_THREADS]
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, all that is shared


def main() -> None:
    """Import, fork; in a child: run its command."""
    die_with_supervisor()
    link = _link_on_stdin()
    _import()
    words = Forks(link).run()
    if words is None:
        return
    from outrider.cli.main import main as command

    sys.argv = ["outrider", *words]
    command()


if __name__ == "__main__":
    main()
