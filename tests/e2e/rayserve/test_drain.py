"""Replicas go while streams run: Serve scales down, or loses a process. No token is lost or repeated."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.e2e.rayserve.streams import disturbed, moved, undisturbed
from tests.processes import wait_until
from tests.serve_cluster import ServeApp

TOKENS = 400


@pytest.fixture(scope="module")
def expected(shared_app: ServeApp) -> list[list[int]]:
    """The tokens that each stream must have."""
    return asyncio.run(undisturbed(shared_app, TOKENS))


async def test_scaling_down_loses_no_token(tiny_app: ServeApp, expected: list[list[int]]) -> None:
    await asyncio.to_thread(tiny_app.scale, verifier=2, drafter_twin=2)
    before, moves = tiny_app.pids("verifier"), moved(tiny_app)

    def down() -> None:
        tiny_app.scale(wait=False, verifier=1, drafter_twin=1)

    assert await disturbed(tiny_app, TOKENS, down) == expected
    assert moved(tiny_app) > moves, "streams ended before their verifier went"
    await asyncio.to_thread(tiny_app.wait_running, **{"verifier": 1, "drafter-twin": 1})
    assert len(before) == 2 and set(tiny_app.pids("verifier")) < set(before)


async def test_a_verifier_that_is_killed_is_replaced_and_its_streams_go_on(
    tiny_app: ServeApp, expected: list[list[int]]
) -> None:
    await asyncio.to_thread(tiny_app.scale, verifier=2)
    before, moves = tiny_app.pids("verifier"), moved(tiny_app)

    def kill() -> None:
        os.kill(before[0], signal.SIGKILL)

    assert await disturbed(tiny_app, TOKENS, kill) == expected
    assert moved(tiny_app) > moves

    def replaced() -> bool:
        after = tiny_app.pids("verifier")
        return len(after) == 2 and before[0] not in after and before[1] in after

    await asyncio.to_thread(wait_until, replaced, "there is another verifier beside the first", timeout_s=120)


async def test_the_registry_is_replaced_and_nobody_notices(
    tiny_app: ServeApp, expected: list[list[int]]
) -> None:
    (before,) = tiny_app.pids("registry")
    moves = moved(tiny_app)
    os.kill(before, signal.SIGKILL)
    await asyncio.to_thread(
        wait_until,
        lambda: tiny_app.pids("registry") not in ([], [before]),
        "there is another registry",
        timeout_s=120,
    )
    assert await undisturbed(tiny_app, TOKENS) == expected
    assert moved(tiny_app) == moves
