"""Opens the engine of a verifier: on this thread alone, or as rank 0 of several."""

from __future__ import annotations

from pathlib import Path

from outrider.config.schema import VerifierConfig
from outrider.core.errors import ConfigError, InternalError
from outrider.engine.engine import Engine
from outrider.engine.loading import load_config
from outrider.engine.parallel.leader import Leader
from outrider.engine.parallel.ranks import LostRankError, RankLauncher
from outrider.engine.parallel.sizes import check_sizes


def open_engine(
    folder: Path, config: VerifierConfig, *, name: str = "", launcher: RankLauncher | None = None
) -> Engine:
    """Load a model as `verifier.tensor_parallel` says. What is returned must be closed.

    Args:
        folder: the checkpoint.
        config: of the verifier.
        name: model name in `info`; empty: the folder's name.
        launcher: starts the other ranks, where there are any.

    Raises:
        ConfigError: the folder is no usable checkpoint, or so many ranks cannot share it.
        UnsupportedModelError: the architecture is not supported, or not by several ranks.
        InternalError: another rank did not start, or was lost while the model was measured.
    """
    size = config.tensor_parallel
    if size == 1:
        return Engine.load(folder, config, name=name)
    if launcher is None:
        raise ConfigError(f"verifier.tensor_parallel is {size}, but nothing here can start other ranks")
    check_sizes(load_config(folder), size)
    leader = Leader.launch(folder, config, launcher)
    try:
        return Engine.load(folder, leader.config, name=name, leader=leader)
    except BaseException as error:
        leader.close()
        if isinstance(error, LostRankError):
            raise InternalError(str(error)) from error
        raise
