"""Conversations on disk, with the target's hidden states: training never runs the target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from outrider.core.errors import ConfigError

_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Token ids of a whole conversation, and what the target held at each of them."""

    token_ids: torch.Tensor  # int64 [n]
    answer: torch.Tensor  # bool [n]: the target's answers, which are what is learned
    features: torch.Tensor  # bf16 [n, features, hidden_size]
    temperature: float  # that the answers were drawn with
    category: str


class Corpus:
    """All shards of some folders, read where they lie."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises:
        ConfigError: there are no shards, they cannot be read, or they hold different features.
        """
        self._files: list[Any] = []
        self.names: tuple[str, ...] = ()  # of the features, in order
        self.sizes: list[int] = []  # tokens of each conversation
        self.temperatures: list[float] = []
        self.categories: list[str] = []
        self._where: list[tuple[int, int]] = []  # file and first token of each conversation
        paths = [path for folder in folders for path in sorted(folder.glob("*" + _SUFFIX))]
        if not paths:
            raise ConfigError(
                f"no shards in {', '.join(map(str, folders))}: make some with `outrider train data`"
            )
        for path in paths:
            self._add(path)

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, index: int) -> Conversation:
        file, start = self._where[index]
        stop = start + self.sizes[index]
        part = {
            name: self._files[file].get_slice(name)[start:stop]
            for name in ("token_ids", "answers", "features")
        }
        return Conversation(
            part["token_ids"].long(),
            part["answers"].bool(),
            part["features"],
            self.temperatures[index],
            self.categories[index],
        )

    def _add(self, path: Path) -> None:
        try:
            file = safe_open(path, framework="pt")
            about = json.loads((file.metadata() or {})["conversations"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise ConfigError(f"{path} is no shard of conversations: {error}") from error
        names = tuple(about["features"])
        if self.names not in ((), names):
            raise ConfigError(f"{path} holds features {names}, the shards before it {self.names}")
        self.names = names
        self._files.append(file)
        start = 0
        for size, temperature, category in zip(
            about["sizes"], about["temperatures"], about["categories"], strict=True
        ):
            self._where.append((len(self._files) - 1, start))
            self.sizes.append(size)
            self.temperatures.append(temperature)
            self.categories.append(category)
            start += size


def write_shard(path: Path, conversations: Sequence[Conversation], names: Sequence[str]) -> None:
    """Write one shard; it is there as a whole, or not at all.

    Args:
        path: ends in .safetensors.
        conversations: at least one.
        names: of the features, in order.
    """
    about = {
        "features": list(names),
        "sizes": [len(one.token_ids) for one in conversations],
        "temperatures": [one.temperature for one in conversations],
        "categories": [one.category for one in conversations],
    }
    tensors = {
        "token_ids": torch.cat([one.token_ids for one in conversations]).to(torch.int32),
        "answers": torch.cat([one.answer for one in conversations]).to(torch.uint8),
        "features": torch.cat([one.features for one in conversations]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, {"conversations": json.dumps(about)})
    partial.rename(path)


def shard_path(folder: Path, number: int) -> Path:
    """Where shard `number` of a folder lies."""
    return folder / f"{number:05d}{_SUFFIX}"
