"""Which tokens a drafter can propose: the ones that the target writes most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from outrider.core.errors import ConfigError
from outrider.training.data.shards import Shard


def frequent_ids(shards: Sequence[Shard], size: int, vocab_size: int) -> torch.Tensor:
    """The `size` ids that stand most often in answers (of equals the lowest), ascending: int64 [size]."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for shard in shards:
        counts += torch.bincount(shard.answered_ids(), minlength=vocab_size)
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def read_ids(path: Path) -> torch.Tensor:
    """The draft vocabulary in a safetensors file: its only tensor, int64 [columns].

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    try:
        tensors: list[torch.Tensor] = list(load_file(path).values())
        (ids,) = tensors
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{path} holds no draft vocabulary: {error}") from error
    return ids.long()
