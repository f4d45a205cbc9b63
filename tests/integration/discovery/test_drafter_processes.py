"""Replicas of one drafter as processes: the same command, started as often as one likes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from outrider.config import OutriderConfig, dump_config
from outrider.config.schema import DrafterConfig
from outrider.discovery import LeaseRegistry, Role
from tests.integration.discovery.conftest import until

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GRPC_ENABLE_FORK_SUPPORT": "0"}


@asynccontextmanager
async def drafter(config: Path) -> AsyncIterator[tuple[Process, str]]:
    """One process, once it is ready, with its address; killed at the end."""
    words = ["drafter", "lookup", "--config", str(config), "--set", "drafters.lookup.port=0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "outrider.cli.main", *words),
        stdin=DEVNULL,
        stdout=PIPE,
        env={**os.environ, **ENVIRONMENT},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(90):
            line = json.loads(await process.stdout.readline())
        yield process, line["grpc"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_one_command_gives_as_many_replicas_as_one_starts(
    config: OutriderConfig, registry: LeaseRegistry, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    lookup = {"lookup": DrafterConfig(method="prompt_lookup")}
    path.write_text(dump_config(config.model_copy(update={"drafters": lookup})))

    async def addresses() -> set[str]:
        return {one.address for one in await registry.list(Role.DRAFTER, "lookup")}

    async with drafter(path) as (one, first), drafter(path) as (other, second):
        assert await addresses() == {first, second} and first != second
        one.kill()

        async def forgotten() -> bool:
            return await addresses() == {second}

        await until(forgotten)
        other.terminate()
        assert await other.wait() == 0
        assert await addresses() == set()
