"""Ranks 1 to N - 1 of a model: they load their part, and then do what rank 0 does, when it says so."""

from __future__ import annotations

import logging
from typing import Any, cast

import torch

from outrider.core.errors import UnavailableError
from outrider.engine.calibration import calibrate
from outrider.engine.hugepages import back_with_huge_pages
from outrider.engine.loading import load_config, load_runner, pool_slots
from outrider.engine.parallel import wire
from outrider.engine.parallel.group import Control, open_control, open_group, reach
from outrider.engine.parallel.meeting import note, note_failure
from outrider.engine.parallel.ranks import RankTask
from outrider.engine.parallel.sizes import check_sizes
from outrider.engine.runner import Runner

_log = logging.getLogger(__name__)


def follow(task: RankTask) -> None:
    """Be a rank until rank 0 says stop. Once in a process. Waits without a CPU while rank 0 is idle.

    Raises:
        OutriderError: it cannot load its part; rank 0 is told why.
        UnavailableError: rank 0, or another rank, is gone.
        ProtocolError: rank 0 sent what is no command.
    """
    try:
        store, host = reach(task.rendezvous)
    except RuntimeError as error:
        raise UnavailableError(f"rank 0 at {task.rendezvous} cannot be reached: {error}") from error
    try:
        control, runner = _join(task, store, host)
    except Exception as error:
        note_failure(store, task.rank, f"{type(error).__name__}: {error}")
        raise
    _log.info("rank %d of %d is ready", task.rank, task.world_size)
    try:
        with torch.inference_mode():
            while _obey(control, runner, task):
                pass
    except RuntimeError as error:  # how torch says that a peer is gone or late
        raise UnavailableError(f"rank {task.rank} has lost the others: {error}") from error


def _join(task: RankTask, store: Any, host: str) -> tuple[Control, Runner]:
    config = task.config
    if config.threads:
        torch.set_num_threads(config.threads)
    note(store, "started", task.rank)
    control = open_control(store, task.rank, task.world_size, host, task.timeout_s)
    group = open_group(store, task.rank, task.world_size, host, config.device, task.timeout_s)
    model_config = load_config(task.folder)
    check_sizes(model_config, task.world_size)
    with torch.inference_mode():
        runner = load_runner(
            task.folder,
            model_config,
            dtype=_dtype(task),
            device=config.device,
            slots=pool_slots(config),
            lean=True,
            head_rows=None,
            group=group,
        )
    back_with_huge_pages()
    note(store, "loaded", task.rank)
    return control, runner


def _obey(control: Control, runner: Runner, task: RankTask) -> bool:
    """Do the next thing; False: it was to stop."""
    command, words = wire.command_of(control.hear())
    match command:
        case wire.Command.FORWARD:
            plan, rows = wire.to_forward(words)
            runner.forward(plan, rows)
        case wire.Command.MOVE:
            runner.store.move(*wire.to_move(words))
        case wire.Command.READ:
            control.answer(runner.store.read(wire.to_read(words)).cpu())
        case wire.Command.CALIBRATE:
            least = calibrate(runner, _dtype(task), task.config.device)
            control.answer(torch.tensor([least.rows, least.queries]))
    return command != wire.Command.STOP


def _dtype(task: RankTask) -> torch.dtype:
    return cast(torch.dtype, getattr(torch, task.config.dtype))
