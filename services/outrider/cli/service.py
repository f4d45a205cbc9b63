"""Runs one service in this process: signals stop it, one line of JSON says when it is ready."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from outrider.cli.children import SUPERVISOR_PID
from outrider.config.processes import favour_latency

Ready = Callable[[dict[str, str]], None]
Serve = Callable[[Ready, asyncio.Event], Awaitable[None]]

_PR_SET_PDEATHSIG = 1


def die_with_supervisor() -> None:
    """Make sure that this process does not outlive the supervisor that started it, if one did.

    To be called before anything slow. On Linux the kernel sees to it, even if this process is
    frozen or stuck; elsewhere a thread looks twice a second.
    """
    text = os.environ.get(SUPERVISOR_PID, "")
    if not text.isdecimal():
        return
    supervisor = int(text)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(supervisor,), daemon=True).start()
    if os.getppid() != supervisor:  # it died before the line above
        os._exit(1)


def run_service(name: str, serve: Serve) -> NoReturn:
    """Run `serve` until SIGTERM or SIGINT; a second signal has its usual, hard effect. Never returns.

    By then `serve` has drained and closed everything; the interpreter's own end would only take
    torch's modules apart, which was seen to take seconds.
    """
    asyncio.run(_run(name, serve))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _run(name: str, serve: Serve) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def on_ready(addresses: dict[str, str]) -> None:
        favour_latency()
        line = {"ready": True, "service": name, "pid": os.getpid(), **addresses}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await serve(on_ready, stop)


def _watch(supervisor: int) -> None:
    while os.getppid() == supervisor:
        time.sleep(0.5)
    os._exit(1)
