"""The supervisor as a process of its own, killed in every way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]

_SUPERVISOR = """
import asyncio, os, sys
from pathlib import Path
from outrider.cli.serve import log_line, run_until_signal
from outrider.cli.supervisor import Supervisor
from tests.integration.cli import children_programs as programs
folder = Path(sys.argv[1])
bodies = {"a": programs.SERVES, "b": getattr(programs, sys.argv[2])}
specs = [programs.spec(folder, name, body) for name, body in bodies.items()]
supervisor = Supervisor(specs, dict(os.environ), log_line, grace_s=float(sys.argv[3]))
def ready(services):
    print(*(running.pid for running in services.values()), flush=True)
asyncio.run(run_until_signal(supervisor, ready))
"""


class Process:
    """The supervisor's process and its children, known by pid."""

    def __init__(self, folder: Path, second: str, grace_s: float) -> None:
        command = [sys.executable, "-c", _SUPERVISOR, str(folder), second, str(grace_s)]
        self.popen = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self.children = [psutil.Process(int(pid)) for pid in self.popen.stdout.readline().split()]

    def assert_all_dead(self) -> None:
        _, alive = psutil.wait_procs(self.children, timeout=30)
        assert alive == []


@pytest.fixture
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    running = Process(tmp_path, *getattr(request, "param", ("SERVES", 30.0)))
    with running.popen:
        assert len(running.children) == 2
        yield running
        running.popen.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything_cleanly(process: Process, number: signal.Signals) -> None:
    process.popen.send_signal(number)
    assert process.popen.wait(60) == 0
    process.assert_all_dead()


def test_nobody_outlives_a_killed_supervisor(process: Process) -> None:
    process.popen.kill()
    process.popen.wait(60)
    process.assert_all_dead()


def test_not_even_a_frozen_child_outlives_it(process: Process) -> None:
    os.kill(process.children[0].pid, signal.SIGSTOP)
    process.popen.kill()
    process.popen.wait(60)
    process.assert_all_dead()


@pytest.mark.parametrize("process", [("IGNORES_SIGTERM", 3600.0)], indirect=True)
def test_a_second_signal_does_not_wait(process: Process) -> None:
    process.popen.send_signal(signal.SIGTERM)
    psutil.wait_procs(process.children[:1], timeout=30)  # the first signal has been heard
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(60) == 0
    process.assert_all_dead()
