"""Rows of logits over the whole vocabulary, with the maximum of each group of ids.

The maxima make it cheap to find the few ids above a bound: most groups need not be looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from outrider.core.errors import InternalError
from outrider.core.noise import GROUP_SIZE

_IMPOSSIBLE = float("-inf")


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Logits by vocabulary id, for R rows. Ids that may not be drawn have the logit -inf."""

    table: torch.Tensor  # float32 [T, G * GROUP_SIZE]
    index: torch.Tensor  # int64 [R]: which rows of `table` these are
    maxima: torch.Tensor  # float32 [R, G]: of each group of GROUP_SIZE ids
    best: torch.Tensor  # float32 [R]: of each row
    best_ids: torch.Tensor  # int64 [R]: the lowest id that has it

    @classmethod
    def of(cls, logits: torch.Tensor, token_ids: torch.Tensor | None = None) -> LogitRows:
        """From logits [R, V], whose columns are the ids `token_ids` [V], or 0 to V-1.

        Raises:
            InternalError: a row holds NaN or +inf, or nothing but -inf.
        """
        table = _over_vocabulary(logits.to(torch.float32), token_ids)
        index = torch.arange(len(table), device=table.device)
        grouped = table.view(len(table), -1, GROUP_SIZE)
        maxima = grouped.amax(2)
        # argmax returns the first of equal maxima, so taking it twice gives the lowest id.
        groups = maxima.argmax(1)
        best_ids = groups * GROUP_SIZE + grouped[index, groups].argmax(1)
        best = maxima.amax(1)
        for row, value in enumerate(best.tolist()):
            check_best(row, value)
        return cls(table, index, maxima, best, best_ids)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def groups(self) -> int:
        """Groups of ids, the last one padded."""
        return self.maxima.shape[1]

    def select(self, rows: torch.Tensor) -> LogitRows:
        """These rows only; the logits are not copied."""
        return LogitRows(
            self.table, self.index[rows], self.maxima[rows], self.best[rows], self.best_ids[rows]
        )

    def at(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The logits at these rows and ids, float32 of their common shape."""
        return self.table.view(-1)[self.index[rows] * self.table.shape[1] + ids]

    def row(self, row: int) -> torch.Tensor:
        """All logits of one row."""
        return self.table[self.index[row]]

    def at_least(self, bounds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and id of every logit that reaches its bound, ordered by row, then by id.

        Args:
            bounds: float32 [R, G] or [R, 1], above -inf.
        """
        rows, groups = (self.maxima >= bounds).nonzero(as_tuple=True)
        own = bounds.expand(-1, self.groups)[rows, groups]
        blocks = self.table.view(-1, GROUP_SIZE)[self.index[rows] * self.groups + groups]
        which, inside = (blocks >= own[:, None]).nonzero(as_tuple=True)
        return rows[which], groups[which] * GROUP_SIZE + inside


def check_best(row: int, value: float) -> float:
    """The maximum of a row, if something can be drawn from the row.

    Raises:
        InternalError: it is NaN (as it is if anything in its row is), +inf or -inf.
    """
    if not math.isfinite(value):
        raise InternalError(f"row {row} of the logits has the maximum {value}: nothing can be drawn")
    return value


def _over_vocabulary(logits: torch.Tensor, token_ids: torch.Tensor | None) -> torch.Tensor:
    """Logits by id, with -inf for ids that no column stands for, up to a whole number of groups."""
    rows, columns = logits.shape
    size = columns if token_ids is None else int(token_ids.max()) + 1
    padded = -(-size // GROUP_SIZE) * GROUP_SIZE
    if token_ids is None and padded == columns:
        return logits.contiguous()
    full = logits.new_full((rows, padded), _IMPOSSIBLE)
    if token_ids is None:
        full[:, :columns] = logits
    else:
        full[:, token_ids] = logits
    return full
