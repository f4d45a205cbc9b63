"""Starts a stack of its own for a measurement: `outrider serve` as a process, on free ports."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from outrider.config import load_config
from outrider.core.errors import UnavailableError

START_TIMEOUT_S = 300.0  # loading a large model from a slow disk
STOP_TIMEOUT_S = 30.0
LOG_TAIL = 30  # lines shown if the stack does not start


def overrides_for(config: Path | None, overrides: Sequence[str]) -> list[str]:
    """The `--set` options of a stack that is only measured: the user's, and what these leave open.

    Free ports, so that it does not collide with a running one. No prefix cache: the same prompt is
    sent once for each drafter, and only the first one would have to prefill it.
    """
    ours = {"gateway.http_port": "0", "gateway.grpc_port": "0", "verifier.port": "0"}
    ours["verifier.prefix_cache"] = "false"
    for name in load_config(config, overrides).drafters:
        ours |= {f"drafters.{name}.port": "0", f"drafters.{name}.prefix_cache": "false"}
    theirs = {override.partition("=")[0].strip() for override in overrides}
    return [*overrides, *(f"{path}={value}" for path, value in ours.items() if path not in theirs)]


@contextmanager
def running_stack(config: Path | None, overrides: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Start a stack; gives what its ready line says (`http`: the gateway's URL); stops it at the end.

    Raises:
        UnavailableError: it did not become ready; shows the end of its log.
    """
    command = [sys.executable, "-m", "outrider.cli.main", "serve", "--json-ready"]
    if config is not None:
        command += ["--config", str(config)]
    for override in overrides:
        command += ["--set", override]
    with running(command) as ready:
        yield ready


@contextmanager
def running(command: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run a command that says with a line of JSON that it is ready; gives that line; stops it at the end.

    Raises:
        UnavailableError: it did not become ready; shows the end of its log.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield _wait_ready(process, log)
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[str], log: IO[str]) -> dict[str, Any]:
    lines: queue.Queue[str | None] = queue.Queue()
    # Read to the end of the stack's life, or a full pipe would stop it.
    threading.Thread(target=_forward, args=(process, lines), daemon=True).start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise UnavailableError(f"the stack was not ready within {START_TIMEOUT_S:.0f} s") from None
        if line is None:
            raise UnavailableError(f"the stack stopped before it was ready:\n{_tail(log)}")
        ready: dict[str, Any] = json.loads(line)
        if ready["event"] == "ready":
            return ready


def _forward(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


def _tail(log: IO[str]) -> str:
    log.seek(0)
    return "".join(log.readlines()[-LOG_TAIL:])


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
