"""Conversations on disk: safetensors files that are read where they lie, so that none has to fit memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from outrider.core.errors import ConfigError

_FEATURE = "feature."


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation, or its end."""

    token_ids: torch.Tensor  # int64 [n]
    response: torch.Tensor  # bool [n]: written as an answer
    features: Mapping[str, torch.Tensor]  # of each token, bf16 [n, hidden_size]
    category: str
    temperature: float
    seed: int


class Shard:
    """A file of conversations. Tensors are read when asked for."""

    def __init__(self, path: Path) -> None:
        """Raises:
        ConfigError: the file cannot be read, or is no shard.
        """
        self.path = path
        try:
            with safe_open(path, framework="pt") as file:
                self._about: dict[str, Any] = json.loads(file.metadata()["conversations"])
                self._offsets: list[int] = file.get_tensor("offsets").tolist()
                self._ids: torch.Tensor = file.get_tensor("token_ids")
                self._response: torch.Tensor = file.get_tensor("response")
                self._names = [name for name in file.keys() if name.startswith(_FEATURE)]  # noqa: SIM118 (no mapping)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is no shard of training data: {error}") from error

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def response_tokens(self) -> int:
        """Tokens of answers in all conversations."""
        return int(self._response.sum())

    @property
    def features(self) -> frozenset[str]:
        """Hidden states that were stored."""
        return frozenset(name.removeprefix(_FEATURE) for name in self._names)

    def length(self, index: int) -> int:
        """Tokens of a conversation."""
        return self._offsets[index + 1] - self._offsets[index]

    def answered_ids(self) -> torch.Tensor:
        """Ids of all tokens of answers, int64 [n]."""
        return self._ids[self._response].long()

    def answer(self, index: int) -> list[int]:
        """The last answer of a conversation."""
        window = slice(self._offsets[index], self._offsets[index + 1])
        response = self._response[window].long()
        start = (
            int((response.diff() > 0).nonzero().flatten()[-1]) + 1 if int(response.sum()) else len(response)
        )
        ids: list[int] = self._ids[window][start:].tolist()
        return ids

    def sample(self, index: int, names: Sequence[str] = (), most: int = 0) -> Sample:
        """A conversation with these features; of one longer than `most` (0: no limit) the last tokens.

        Raises:
            ConfigError: a feature that was not stored.
        """
        missing = sorted(set(names) - self.features)
        if missing:
            raise ConfigError(f"{self.path} holds no features {missing}, only {sorted(self.features)}")
        start, stop = self._offsets[index], self._offsets[index + 1]
        start = max(start, stop - most) if most else start
        features: dict[str, torch.Tensor] = {}
        if names:
            with safe_open(self.path, framework="pt") as file:
                for name in names:
                    features[name] = file.get_slice(_FEATURE + name)[start:stop]
        return Sample(
            self._ids[start:stop].long(),
            self._response[start:stop],
            features,
            self._about["categories"][index],
            self._about["temperatures"][index],
            self._about["seeds"][index],
        )


def write_shard(path: Path, samples: Sequence[Sample]) -> None:
    """Write conversations; the file appears whole or not at all."""
    lengths = torch.tensor([0, *(len(sample.token_ids) for sample in samples)])
    empty = torch.empty(0, dtype=torch.int64)
    tensors = {
        "offsets": lengths.cumsum(0),
        "token_ids": torch.cat([empty, *(sample.token_ids for sample in samples)]).int(),
        "response": torch.cat([empty.bool(), *(sample.response for sample in samples)]),
    }
    for name in samples[0].features if samples else ():
        tensors[_FEATURE + name] = torch.cat([sample.features[name] for sample in samples])
    about = {
        "categories": [sample.category for sample in samples],
        "temperatures": [sample.temperature for sample in samples],
        "seeds": [sample.seed for sample in samples],
    }
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"conversations": json.dumps(about)})
    partial.rename(path)


def shard_path(folder: Path, number: int) -> Path:
    """Where the shard of that number lies."""
    return folder / f"{number:05d}.safetensors"


def open_shards(folders: Sequence[Path]) -> list[Shard]:
    """All shards in these folders, in order.

    Raises:
        ConfigError: there is none, or one cannot be read.
    """
    shards = [Shard(path) for folder in folders for path in sorted(folder.glob("[0-9]*.safetensors"))]
    if not shards:
        raise ConfigError(
            f"no training data in {', '.join(map(str, folders))}: `outrider train data` writes it"
        )
    return shards
