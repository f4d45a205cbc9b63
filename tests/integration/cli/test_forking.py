"""Services forked from a real template process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path

import psutil
import pytest

from outrider.cli.children import ServiceSpec
from outrider.cli.forking import Forked, Template, ask, pid_of, status_of
from outrider.cli.supervisor import Running, Supervisor
from outrider.cli.template import Forks
from outrider.core.errors import UnavailableError
from tests.integration.cli import children_programs as programs

LISTENS = ("drafter", "lookup", "--set", "drafters={lookup: {method: prompt_lookup, port: 0}}")


async def listening() -> tuple[Template, Forked]:
    """A service that a new template forked, once it is ready."""
    template = Template(dict(os.environ))
    forked = await template.fork(LISTENS)
    assert forked.stdout is not None
    assert b'"ready": true' in await forked.stdout.readline()
    return template, forked


async def test_the_life_of_a_forked_service() -> None:
    template, forked = await listening()
    try:
        assert forked.returncode is None
        assert os.getsid(forked.pid) == forked.pid, "a Ctrl-C in the terminal does not reach it"
        assert len(await command_output(template, "version")) == 1

        forked.send_signal(signal.SIGTERM)
        assert await forked.wait() == 0

        failed = await template.fork(["drafter", "nobody"])
        assert await failed.wait() == 1
        assert failed.stderr is not None
        assert b"no such drafter" in await failed.stderr.read()

        killed = await template.fork(LISTENS)
        killed.send_signal(signal.SIGKILL)
        assert await killed.wait() == killed.returncode == -signal.SIGKILL
    finally:
        await template.close()


async def command_output(template: Template, *words: str) -> list[bytes]:
    forked = await template.fork(words)
    assert forked.stdout is not None
    lines = (await forked.stdout.read()).splitlines()
    assert await forked.wait() == 0
    return lines


async def test_a_template_that_dies_takes_its_services_along_and_another_one_takes_its_place() -> None:
    template, forked = await listening()
    try:
        mother = psutil.Process(forked.pid).parent()
        assert mother is not None
        assert mother.ppid() == os.getpid()
        mother.kill()
        assert await forked.wait() == -signal.SIGKILL
        assert await command_output(template, "version")
    finally:
        await template.close()


def test_a_process_with_threads_does_not_fork() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        told = ask(ours, ["version"], 1, 2)
        ours.close()
        assert Forks(theirs).run() is None
        with os.fdopen(told, "rb") as line, pytest.raises(UnavailableError, match="threads, of which a fork"):
            pid_of(line.readline())
    finally:
        done.set()
        thread.join()
        theirs.close()


def test_a_template_that_is_gone_cannot_be_asked() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with ours, pytest.raises(UnavailableError, match="is gone"):
        ask(ours, ["version"], 1, 2)


def test_one_that_died_with_its_template_was_killed() -> None:
    assert status_of(b"") == -signal.SIGKILL
    assert status_of(b"3\n") == 3
    with pytest.raises(UnavailableError, match="it died"):
        pid_of(b"")


async def test_what_cannot_be_forked_is_started_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("outrider.cli.forking.COMMAND", ("/bin/false",))
    command = programs.spec(tmp_path, "a", programs.SERVES).command
    spec = ServiceSpec("a", command, words=("version",))
    stop = asyncio.Event()
    ready: list[dict[str, Running]] = []

    def on_ready(services: dict[str, Running]) -> None:
        ready.append(services)
        stop.set()

    running = Supervisor([spec], dict(os.environ), lambda name, line: None, grace_s=10)
    await running.run(stop, on_ready)
    assert len(ready) == 1
    assert "a is started by itself" in caplog.text
