"""Conversations in a row, so that a step of training has no padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from outrider.training.data.shards import Sample


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of all tokens of several conversations."""

    token_ids: torch.Tensor  # int64 [rows]
    response: torch.Tensor  # bool [rows]: the token was written as an answer
    features: Mapping[str, torch.Tensor]  # [rows, hidden_size]
    segments: tuple[tuple[int, int], ...]  # first row and end of each conversation
    positions: torch.Tensor  # int64 [rows] in the conversation
    left: torch.Tensor  # int64 [rows] that follow in the conversation

    def answered(self, ahead: int) -> torch.Tensor:
        """bool [rows]: the token so many rows ahead is there, and was written as an answer."""
        return shifted(self.response, -ahead) & (self.left >= ahead)


def pack(samples: Sequence[Sample], device: str) -> Packed:
    """Put conversations, at least one, in a row."""
    lengths = [len(sample.token_ids) for sample in samples]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    segments = tuple((end - length, end) for end, length in zip(ends, lengths, strict=True))
    positions = torch.cat([torch.arange(length) for length in lengths])
    left = torch.cat([torch.arange(length - 1, -1, -1) for length in lengths])
    return Packed(
        torch.cat([sample.token_ids for sample in samples]).to(device),
        torch.cat([sample.response for sample in samples]).to(device),
        {
            name: torch.cat([sample.features[name] for sample in samples]).to(device)
            for name in samples[0].features
        },
        segments,
        positions.to(device),
        left.to(device),
    )


def shifted(rows: torch.Tensor, by: int) -> torch.Tensor:
    """Rows moved down by `by` (up if negative), zeros moving in. Does not see where conversations end."""
    if by == 0:
        return rows
    empty = torch.zeros_like(rows[: abs(by)])
    return torch.cat((empty, rows[:-by])) if by > 0 else torch.cat((rows[-by:], empty))
