"""The edits of one session in the form that editing works with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from outrider.core.history import TokenHistory
from outrider.core.params import LogitEdits


@dataclass(frozen=True, slots=True)
class EditPlan:
    """Tensors of ids are int64; all are on the CPU."""

    allowed: torch.Tensor | None  # ids; None: all
    banned: torch.Tensor  # ids that are never drawn
    banned_after: dict[
        int, list[tuple[Sequence[int], int]]
    ]  # by the id before: all ids before, the banned id
    min_tokens: int
    end_ids: torch.Tensor
    bias_ids: torch.Tensor
    bias: torch.Tensor  # float32, of these ids
    repetition: float
    frequency: float
    presence: float

    @property
    def counts(self) -> bool:
        """Whether it matters how often a token was generated."""
        return self.frequency != 0.0 or self.presence != 0.0

    def banned_next(self, history: TokenHistory, above: Sequence[int]) -> Iterator[int]:
        """Ids that would complete a bad word of several ids."""
        if not self.banned_after:
            return
        last = above[-1] if above else history.output[-1] if history.output else -1
        for before, token_id in self.banned_after.get(last, ()):
            missing = len(before) - len(above)
            tail = [*(history.output[-missing:] if missing > 0 else ()), *above][-len(before) :]
            if tail == before:
                yield token_id


@lru_cache(maxsize=256)
def plan_of(edits: LogitEdits) -> EditPlan:
    """The plan of these edits; sessions ask for theirs at every step."""
    after: dict[int, list[tuple[Sequence[int], int]]] = {}
    for *before, token_id in edits.bad_words:
        if before:
            after.setdefault(before[-1], []).append((before, token_id))
    bias = dict(edits.logit_bias)
    return EditPlan(
        allowed=_ids(set(edits.allowed_token_ids)) if edits.allowed_token_ids else None,
        banned=_ids({word[0] for word in edits.bad_words if len(word) == 1}),
        banned_after=after,
        min_tokens=edits.min_tokens,
        end_ids=_ids(set(edits.end_token_ids)),
        bias_ids=_ids(bias),
        bias=torch.tensor([bias[token_id] for token_id in sorted(bias)], dtype=torch.float32),
        repetition=edits.repetition_penalty,
        frequency=edits.frequency_penalty,
        presence=edits.presence_penalty,
    )


def _ids(token_ids: set[int] | dict[int, float]) -> torch.Tensor:
    return torch.tensor(sorted(token_ids), dtype=torch.int64)
