"""The other ranks of a tensor-parallel verifier, as child processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

from outrider.cli import logging
from outrider.cli.children import SUPERVISOR_PID, death_of
from outrider.config.schema import EngineConfig
from outrider.core.errors import ConfigError
from outrider.engine.parallel.ranks import RankTask

LOOPBACK = "127.0.0.1"
GRACE_S = 2.0
"""How long followers that were told to stop may take."""


class LocalRanks:
    """Starts followers as children (implements RankLauncher). They do not outlive this process."""

    def __init__(self, log_level: str = "info") -> None:
        """`log_level`: of the followers, who write to this process's stderr."""
        self._log_level = log_level

    def host(self) -> str:
        """Nobody else need reach it."""
        return LOOPBACK

    def threads(self, world_size: int) -> int:
        """All ranks share this machine's cores: torch's default for one process, divided."""
        import torch

        return max(1, torch.get_num_threads() // world_size)

    def launch(self, tasks: list[RankTask]) -> LocalFollowers:
        """See RankLauncher. On GPUs each rank has the one of its own number.

        Raises:
            ConfigError: the configuration names a single GPU.
        """
        return LocalFollowers([_start(_on_own_device(task), self._log_level) for task in tasks])


class LocalFollowers:
    """Followers that run as children (implements Ranks)."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """`processes`: of ranks 1, 2, ..."""
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        """Of ranks 1, 2, ..."""
        return [process.pid for process in self._processes]

    def dead(self) -> str:
        """See Ranks."""
        for rank, process in enumerate(self._processes, 1):
            status = process.poll()
            if status is not None:
                return f"rank {rank} of the model (pid {process.pid}) died: {death_of(status)}"
        return ""

    def close(self) -> None:
        """See Ranks."""
        deadline = monotonic() + GRACE_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run_follower(text: str) -> None:
    """Be the follower that `text` describes. Its verifier alone ends it, once its sessions are handed over.

    Raises:
        OutriderError: it cannot load, or has lost the others.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # from a terminal or an init they reach whole groups
        signal.signal(number, signal.SIG_IGN)
    task, log_level = _task_of(text)
    logging.set_up(log_level)
    from outrider.engine.parallel.follower import follow

    follow(task)
    sys.stderr.flush()
    os._exit(0)  # as services do: taking torch apart takes seconds


def _task_of(text: str) -> tuple[RankTask, str]:
    fields: dict[str, Any] = json.loads(text)
    level = fields.pop("log_level")
    config = EngineConfig.model_validate(fields.pop("config"))
    return RankTask(folder=Path(fields.pop("folder")), config=config, **fields), level


def _text_of(task: RankTask, log_level: str) -> str:
    fields = asdict(replace(task, folder=str(task.folder)))  # type: ignore[arg-type]  # a path is no JSON
    return json.dumps({**fields, "config": task.config.model_dump(), "log_level": log_level})


def _on_own_device(task: RankTask) -> RankTask:
    device = task.config.device
    if device.startswith("cuda:"):
        raise ConfigError(
            f"verifier.device is {device}, but of {task.world_size} ranks each needs a GPU of its own: "
            "write cuda (which GPUs there are says CUDA_VISIBLE_DEVICES)"
        )
    if device != "cuda":
        return task
    return replace(task, config=task.config.model_copy(update={"device": f"cuda:{task.rank}"}))


def _start(task: RankTask, log_level: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # our own command  # nosec B603
        [sys.executable, "-m", "outrider.cli.main", "rank"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # the verifier's own says when it is ready
        env={**os.environ, SUPERVISOR_PID: str(os.getpid())},
    )
    assert process.stdin is not None
    process.stdin.write(_text_of(task, log_level).encode())
    process.stdin.close()
    return process
