"""The tensors of a checkpoint by name, each asked for once and with its shape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from outrider.core.errors import ConfigError
from outrider.drafting.picking.vocabulary import FILE as DRAFT_VOCABULARY

Rename = Callable[[str], str | None]
_Named = tuple[str, Callable[[], torch.Tensor]]  # a name, and what reads the tensor

_PICKLED = ("pytorch_model*.bin", "*.pt", "*.bin")


class CheckpointTensors:
    """What the files of a checkpoint hold; says what is missing, misshapen or not understood.

    *.safetensors are read (but for the draft vocabulary, which is no weight), or else files of torch.save,
    without running any code of theirs.
    """

    def __init__(self, folder: Path, *, rename: Rename = lambda name: name) -> None:
        """Args:
        folder: of the checkpoint.
        rename: a tensor's name as it is asked for; None: it is left out, and not read if that can be helped.

        Raises:
            ConfigError: there are no weights, or they cannot be read, or two get the same name.
        """
        self._folder = folder
        self._tensors, self._left_out = _read(folder, rename)
        self._taken: set[str] = set()

    @property
    def names(self) -> Collection[str]:
        """Of all tensors that were read."""
        return self._tensors.keys()

    @property
    def left_out(self) -> int:
        """How many were not."""
        return self._left_out

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


def _read(folder: Path, rename: Rename) -> tuple[dict[str, torch.Tensor], int]:
    """Tensors by their new names, and how many were left out."""
    path = folder
    tensors: dict[str, torch.Tensor] = {}
    left_out = 0
    try:
        for path in _files(folder):
            for name, value in _in_safetensors(path) if path.suffix == ".safetensors" else _unpickled(path):
                new = rename(name)
                if new is None:
                    left_out += 1
                elif new in tensors:
                    raise ConfigError(f"weights of {folder}: {new} stands there twice, again in {path.name}")
                else:
                    tensors[new] = value()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return tensors, left_out


def _files(folder: Path) -> list[Path]:
    """Those that hold the weights."""
    for pattern in ("*.safetensors", *_PICKLED):
        files = [path for path in sorted(folder.glob(pattern)) if path.name != DRAFT_VOCABULARY]
        if files:
            return files
    raise ConfigError(f"{folder} holds no weights: no *.safetensors, no pytorch_model.bin, no *.pt")


def _in_safetensors(path: Path) -> Iterator[_Named]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a dict
            yield name, partial(file.get_tensor, name)


def _unpickled(path: Path) -> Iterator[_Named]:
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what is no pickle makes its reader fail in any way
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise ConfigError(f"{path} holds something else than tensors by name")
    for name, value in loaded.items():
        yield str(name), partial(_itself, value)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
