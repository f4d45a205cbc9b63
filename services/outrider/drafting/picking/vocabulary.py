"""The ids that a draft model may propose, where these are fewer than the tokenizer's."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from outrider.core.errors import ConfigError

FILE = "draft_vocabulary.safetensors"
"""In the draft model's folder, next to its weights."""
TENSOR = "draft_vocabulary"


def load_vocabulary(folder: Path) -> torch.Tensor | None:
    """Vocabulary ids for the rows of a reduced output head, int64 [n], ascending; None: all of them.

    A reduced head is cheaper and hardly costs acceptance: EAGLE-3 and FR-Spec (arXiv 2502.14856).

    Raises:
        ConfigError: the file holds something else.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    ids = tensors.get(TENSOR, torch.empty(0))
    if ids.ndim != 1 or ids.is_floating_point() or not len(ids):
        raise ConfigError(f"{path} must hold an integer tensor {TENSOR!r} with one dimension, not empty")
    unique: torch.Tensor = torch.unique(ids.long())
    if len(unique) != len(ids) or int(unique[0]) < 0:
        raise ConfigError(f"{path} must hold different ids, none below 0")
    return unique
