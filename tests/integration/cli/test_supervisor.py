"""The supervisor with real processes and real signals."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from outrider.cli.supervisor import Running, Supervisor
from outrider.core.errors import UnavailableError
from tests.integration.cli import children_programs as programs


class Stack:
    """A supervisor under test, with what it said."""

    def __init__(
        self, *specs: programs.ServiceSpec, start_timeout_s: float = 60.0, grace_s: float = 30.0
    ) -> None:
        self.lines: list[tuple[str, str]] = []
        self.restarts: asyncio.Queue[Running] = asyncio.Queue()
        self.ready: asyncio.Future[dict[str, Running]] = asyncio.get_running_loop().create_future()
        self.stop = asyncio.Event()
        self.supervisor = Supervisor(
            specs,
            dict(os.environ),
            lambda name, line: self.lines.append((name, line)),
            on_restart=self.restarts.put_nowait,
            start_timeout_s=start_timeout_s,
            grace_s=grace_s,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[dict[str, Running]]:
        task = asyncio.create_task(self.supervisor.run(self.stop, self.ready.set_result))
        await asyncio.wait([task, self.ready], return_when=asyncio.FIRST_COMPLETED)
        try:
            if task.done():
                task.result()
            yield self.ready.result()
        finally:
            self.stop.set()
            await task


@pytest.fixture(autouse=True)
def foreign() -> set[int]:
    """Processes of this test run that are no business of a test here: stacks of other modules."""
    FOREIGN.clear()
    FOREIGN.update(child.pid for child in psutil.Process().children(recursive=True))
    return FOREIGN


FOREIGN: set[int] = set()


def assert_no_children() -> None:
    assert [c for c in psutil.Process().children(recursive=True) if c.pid not in FOREIGN] == []


async def test_starts_all_and_stops_all(tmp_path: Path) -> None:
    names = ("gateway", "verifier")
    stack = Stack(*(programs.spec(tmp_path, name, programs.SERVES) for name in names))
    async with stack.running() as services:
        assert set(services) == set(names)
        assert services["gateway"].addresses["http"] == "127.0.0.1:1"
        assert all(psutil.pid_exists(running.pid) for running in services.values())
    assert_no_children()
    for name in names:
        assert (name, "hello from stderr") in stack.lines
        assert (name, "hello from stdout") in stack.lines


async def test_a_killed_child_is_started_again_every_time(tmp_path: Path) -> None:
    stack = Stack(
        programs.spec(tmp_path, "drafter", programs.SERVES), programs.spec(tmp_path, "other", programs.SERVES)
    )
    async with stack.running() as services:
        pids = [services["drafter"].pid]
        for _ in range(3):
            os.kill(pids[-1], signal.SIGKILL)
            again = await asyncio.wait_for(stack.restarts.get(), 60)
            assert again.name == "drafter"
            pids.append(again.pid)
        assert len(set(pids)) == 4
        assert psutil.pid_exists(services["other"].pid)
    assert_no_children()


async def test_a_child_that_keeps_dying_is_started_again(tmp_path: Path) -> None:
    stack = Stack(
        programs.spec(tmp_path, "frail", programs.DIES_ONCE_READY),
        programs.spec(tmp_path, "solid", programs.SERVES),
    )
    async with stack.running():
        for _ in range(2):
            assert (await asyncio.wait_for(stack.restarts.get(), 60)).name == "frail"
    assert_no_children()


async def test_a_child_that_cannot_start_ends_the_start_with_its_own_words(tmp_path: Path) -> None:
    stack = Stack(
        programs.spec(tmp_path, "good", programs.SERVES), programs.spec(tmp_path, "bad", programs.FAILS)
    )
    with pytest.raises(
        UnavailableError, match=r"(?s)bad did not start \(exit status 3\).*the reason is here"
    ):
        async with stack.running():
            raise AssertionError("must not become ready")
    assert_no_children()


async def test_a_child_that_is_never_ready_ends_the_start(tmp_path: Path) -> None:
    stack = Stack(programs.spec(tmp_path, "mute", programs.NEVER_READY), start_timeout_s=0.5)
    with pytest.raises(UnavailableError, match=r"not ready after 0\.5 s: mute"):
        async with stack.running():
            raise AssertionError("must not become ready")
    assert_no_children()


@pytest.mark.parametrize("freeze", [False, True], ids=["ignores SIGTERM", "frozen and ignores SIGTERM"])
async def test_a_child_that_does_not_stop_is_killed(tmp_path: Path, freeze: bool) -> None:
    stack = Stack(programs.spec(tmp_path, "deaf", programs.IGNORES_SIGTERM), grace_s=0.3)
    async with stack.running() as services:
        if freeze:
            os.kill(services["deaf"].pid, signal.SIGSTOP)
    assert_no_children()


async def test_a_frozen_child_wakes_up_to_stop(tmp_path: Path) -> None:
    stack = Stack(programs.spec(tmp_path, "frozen", programs.SERVES))
    async with stack.running() as services:
        os.kill(services["frozen"].pid, signal.SIGSTOP)
    assert_no_children()


async def test_services_stop_in_order(tmp_path: Path) -> None:
    specs = [
        dataclasses.replace(programs.spec(tmp_path, name, programs.SAYS_GOODBYE), stop_order=order)
        for name, order in (("drafter", 2), ("verifier", 1), ("gateway", 0))
    ]
    stack = Stack(*specs)
    async with stack.running():
        pass
    assert [name for name, line in stack.lines if line == "goodbye"] == ["gateway", "verifier", "drafter"]


async def test_told_to_stop_before_anybody_is_ready(tmp_path: Path) -> None:
    stack = Stack(programs.spec(tmp_path, "mute", programs.NEVER_READY))
    stack.stop.set()
    await stack.supervisor.run(stack.stop, stack.ready.set_result)
    assert not stack.ready.done()
    assert_no_children()


async def test_long_lines_and_bad_bytes_of_a_log_pass(tmp_path: Path) -> None:
    body = (
        'sys.stderr.buffer.write(b"x" * 100_000 + b"\\n\\xff end\\n"); sys.stderr.flush()\n' + programs.SERVES
    )
    stack = Stack(programs.spec(tmp_path, "chatty", body))
    async with stack.running():
        pass
    text = "".join(line for _, line in stack.lines)
    assert text.count("x") == 100_000
    assert "� end" in text
