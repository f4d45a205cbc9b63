"""The tensors of a checkpoint by name, each asked for once and with its shape."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from outrider.core.errors import ConfigError

_PICKLED = ("pytorch_model*.bin", "*.pt", "*.bin")


class CheckpointTensors:
    """What the files of a checkpoint hold; says what is missing, misshapen or not understood.

    *.safetensors are read, or else files of torch.save, without running any code of theirs.
    """

    def __init__(self, folder: Path, *, prefix: str = "") -> None:
        """Args:
        folder: of the checkpoint.
        prefix: dropped from the names that have it.

        Raises:
            ConfigError: there are no weights, or they cannot be read.
        """
        self._folder = folder
        self._tensors = {name.removeprefix(prefix): value for name, value in _read(folder).items()}
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name`; a size of -1 may be anything.

        Raises:
            ConfigError: there is none, or it has another shape.
        """
        tensor = self.find(name, *shape)
        if tensor is None:
            raise self.fault(f"{name} is missing")
        return tensor

    def find(self, name: str, *shape: int) -> torch.Tensor | None:
        """The same, or None if there is no such tensor."""
        tensor = self._tensors.get(name)
        if tensor is None:
            return None
        self._taken.add(name)
        found = tuple(tensor.shape)
        fits = len(found) == len(shape) and all(map(_fits, found, shape))
        if not fits:
            expected = " x ".join("any" if size < 0 else str(size) for size in shape)
            raise self.fault(f"{name} has shape {found}, expected {expected}")
        return tensor

    def check_all_taken(self, passed_over: Collection[str] = ()) -> None:
        """Refuse what nobody asked for: a head that is run without a part of it would only draft badly.

        Raises:
            ConfigError: names some.
        """
        left = sorted(set(self._tensors) - self._taken - set(passed_over))
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise self.fault(f"{', '.join(left[:3])}{more} not known")

    def fault(self, what: str) -> ConfigError:
        """An error about tensors of this checkpoint."""
        return ConfigError(f"weights of {self._folder}: {what}")


def _fits(found: int, wanted: int) -> bool:
    return wanted in (-1, found)


def _read(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    path = folder
    try:
        for path in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(path)
        if tensors:
            return tensors
        for pattern in _PICKLED:
            for path in sorted(folder.glob(pattern)):
                tensors |= _unpickled(path)
            if tensors:
                return tensors
    except (OSError, ValueError, RuntimeError, SafetensorError, EOFError, pickle.UnpicklingError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    raise ConfigError(f"{folder} holds no weights: no *.safetensors, no pytorch_model.bin")


def _unpickled(path: Path) -> dict[str, torch.Tensor]:
    loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise ConfigError(f"{path} holds something else than tensors by name")
    return {str(name): value for name, value in loaded.items()}
