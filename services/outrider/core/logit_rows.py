"""Rows of logits over the whole vocabulary, with the maximum of each group of ids.

The maxima make it cheap to find the few ids above a bound: most groups need not be looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.core.errors import InternalError
from outrider.core.noise import GROUP_SIZE

_IMPOSSIBLE = float("-inf")


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Logits by vocabulary id. Ids that may not be drawn have the logit -inf."""

    logits: torch.Tensor  # float32 [R, G * GROUP_SIZE]
    maxima: torch.Tensor  # float32 [R, G]: of each group of GROUP_SIZE ids
    best: torch.Tensor  # float32 [R]: of each row
    best_ids: torch.Tensor  # int64 [R]: the lowest id that has it

    @classmethod
    def of(cls, logits: torch.Tensor, token_ids: torch.Tensor | None = None) -> LogitRows:
        """From logits [R, V], whose columns are the ids `token_ids` [V], or 0 to V-1.

        Raises:
            InternalError: a row holds NaN or +inf, or nothing but -inf.
        """
        logits = _over_vocabulary(logits.to(torch.float32), token_ids)
        rows = logits.shape[0]
        grouped = logits.view(rows, -1, GROUP_SIZE)
        maxima = grouped.amax(2)
        # argmax returns the first of equal maxima, so taking it twice gives the lowest id.
        groups = maxima.argmax(1)
        inside = grouped[torch.arange(rows, device=logits.device), groups].argmax(1)
        best = maxima.amax(1)
        # A maximum is NaN if anything in its row is.
        bad = ~torch.isfinite(best)
        if bad.any():
            row = int(bad.nonzero()[0, 0])
            raise InternalError(f"row {row} of the logits has the maximum {best[row].item()}, not a number")
        return cls(logits, maxima, best, groups * GROUP_SIZE + inside)

    def __len__(self) -> int:
        return self.logits.shape[0]

    @property
    def groups(self) -> int:
        """Groups of ids, the last one padded."""
        return self.maxima.shape[1]

    def select(self, rows: torch.Tensor) -> LogitRows:
        """These rows only."""
        return LogitRows(self.logits[rows], self.maxima[rows], self.best[rows], self.best_ids[rows])

    def at_least(self, bounds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and id of every logit that reaches its bound, ordered by row, then by id.

        Args:
            bounds: float32 [R, G] or [R, 1], above -inf.
        """
        rows, groups = (self.maxima >= bounds).nonzero(as_tuple=True)
        own = bounds.expand(-1, self.groups)[rows, groups]
        found = self.logits.view(len(self), -1, GROUP_SIZE)[rows, groups] >= own[:, None]
        which, inside = found.nonzero(as_tuple=True)
        return rows[which], groups[which] * GROUP_SIZE + inside


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
