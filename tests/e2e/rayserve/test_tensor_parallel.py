"""A verifier of two ranks under Ray Serve: a rolling update to it, its tokens, and the loss of a rank."""

from __future__ import annotations

import asyncio
import os
import signal
from copy import deepcopy
from typing import Any

import psutil
import pytest

from tests.e2e.rayserve.streams import disturbed, moved, steady, undisturbed
from tests.processes import wait_until
from tests.serve_cluster import ServeApp

MANY, FEW = 400, 150
"""Tokens of a stream."""


@pytest.fixture(scope="module")
def parallel_args(tiny_args: dict[str, Any]) -> dict[str, Any]:
    """The shared application, with two ranks."""
    args = deepcopy(tiny_args)
    args["config"]["verifier"]["tensor_parallel"] = 2
    return args


def ranks_of(app: ServeApp) -> list[int]:
    """The processes of the followers: beside the replica's, children of the same raylet."""
    (replica,) = app.pids("verifier")
    raylet = psutil.Process(replica).parent()
    assert raylet is not None
    return [one.pid for one in raylet.children() if "ray::Follower" in " ".join(one.cmdline())]


async def test_an_update_to_two_ranks_loses_no_token_and_a_lost_rank_neither(
    tiny_app: ServeApp, parallel_args: dict[str, Any]
) -> None:
    expected = await undisturbed(tiny_app, MANY)
    (single,) = tiny_app.pids("verifier")
    tiny_app.cluster.deploy(parallel_args, wait=False)
    waves = await steady(tiny_app, MANY, lambda: not psutil.pid_exists(single))
    assert waves and all(tokens == expected for tokens in waves)
    await asyncio.to_thread(tiny_app.wait_running)
    (before,) = tiny_app.pids("verifier")
    (rank,) = ranks_of(tiny_app)

    moves = moved(tiny_app)
    got = await disturbed(tiny_app, FEW, lambda: os.kill(rank, signal.SIGKILL))
    assert got == [tokens[:FEW] for tokens in expected]
    assert moved(tiny_app) > moves

    def replaced() -> bool:
        now = tiny_app.pids("verifier")
        return len(now) == 1 and now != [before]

    await asyncio.to_thread(wait_until, replaced, "there is another verifier", timeout_s=120)
    (after,) = ranks_of(tiny_app)
    assert after != rank
