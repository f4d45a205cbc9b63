"""Edits of logits before temperature and truncation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.history import TokenHistory
from outrider.core.params import LogitEdits, SamplingParams

_NONE = LogitEdits()


@dataclass(frozen=True, slots=True)
class LogitRow:
    """What a row of logits is for: the token after a session's tokens and the draft tokens above it."""

    sampling: SamplingParams
    history: TokenHistory  # of the session, kept up to its committed tokens
    above: Sequence[int] = ()  # draft tokens above the row's node and its own; the root is not one
    mask: torch.Tensor | None = None  # int32 [ceil(V / 32)]: bit x % 32 of word x // 32 allows id x


def is_edited(sampling: SamplingParams) -> bool:
    """Whether rows of such a session are edited at all, grammar included."""
    edits = sampling.edits
    return edits is not _NONE and edits != _NONE


def edit_logits(
    logits: torch.Tensor,
    rows: Sequence[LogitRow | None],
    columns: torch.Tensor | None = None,
) -> None:
    """Edit each row in place; None: it stays as it is."""
