"""What the trainer knows of a network that learns to draft."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from outrider.training.data.shards import Sample
from outrider.training.target import Teacher

OUTPUT_RATE = 0.2
"""Factor of the learning rate of an own output head: its rows begin as the target's."""


class Student(nn.Module, abc.ABC):
    """Parameters are float32; `compute` is the type of activations."""

    features: tuple[str, ...]  # of the target, as its data must hold them

    def __init__(self, teacher: Teacher, *, compute: torch.dtype, device: str) -> None:
        super().__init__()
        self.teacher = teacher
        self.compute = compute
        self.device = device

    @abc.abstractmethod
    def loss(self, samples: Sequence[Sample], unroll: int) -> tuple[torch.Tensor, int]:
        """Mean divergence from the target over the draft vocabulary, and how many tokens of answers it is of.

        `unroll`: how many tokens the student drafts on its own states; students without states do not care.
        """

    @abc.abstractmethod
    def hits(self, samples: Sequence[Sample], depth: int) -> torch.Tensor:
        """Drafts against what the target wrote, from each token of its answers with `depth` tokens after it.

        Returns:
            int64 [depth + 1]: how many drafts there are, and how many of them are right up to each depth.
        """

    @abc.abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights by their published names."""

    @abc.abstractmethod
    def published_config(self) -> dict[str, Any]:
        """What config.json says of them."""

    def groups(self, rate: float) -> list[dict[str, Any]]:
        """Parameter groups of the optimiser, with the `rate` that each reaches."""
        output = [own for name, own in self.named_parameters() if name == "head"]
        rest = [own for name, own in self.named_parameters() if name != "head"]
        groups = [{"params": rest, "lr": rate, "top": rate}]
        return groups + (
            [{"params": output, "lr": rate * OUTPUT_RATE, "top": rate * OUTPUT_RATE}] if output else []
        )

    def load_published(self, tensors: dict[str, torch.Tensor]) -> None:
        """Go on from published weights; names that are missing stay as they are.

        Raises:
            ValueError: a tensor has another shape.
        """
        own = self.tensors()
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name in own and own[name].is_floating_point():
                    if own[name].shape != tensor.shape:
                        raise ValueError(
                            f"{name} has shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}"
                        )
                    own[name].copy_(tensor)


def divergence(taught: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL of the target's law to the student's: the mean over rows.

    Args:
        taught: [rows, columns] log probabilities of the target.
        logits: [rows, columns] of the student.
    """
    return (taught.exp() * (taught - logits.float().log_softmax(-1))).sum(-1).mean()
