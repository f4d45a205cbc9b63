"""Reading and writing single logits of many rows at once, by vocabulary id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

IMPOSSIBLE = float("-inf")
"""The logit of what may not be drawn."""

_BYTES = torch.arange(256)
_FORBIDDEN = (((_BYTES[:, None] >> torch.arange(8)) & 1) == 0).view(torch.int64).flatten()
"""Which ids a byte of a mask forbids: int64 [256], each of which is eight bools."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which ids the columns of a reduced draft vocabulary stand for."""

    ids: torch.Tensor  # int64 [C]: of each column, all different
    of: torch.Tensor  # int64 [largest id + 1]: the column of each id, -1 if it has none

    @classmethod
    def from_ids(cls, ids: torch.Tensor) -> Columns:
        """Of columns with these ids, int64 [C]."""
        of = torch.full((int(ids.max()) + 1,), -1, dtype=torch.int64, device=ids.device)
        of[ids] = torch.arange(len(ids), device=ids.device)
        return cls(ids, of)


@dataclass(frozen=True, slots=True)
class Entries:
    """Single logits, each at most once: parallel int64 tensors on the CPU."""

    rows: torch.Tensor
    ids: torch.Tensor

    @classmethod
    def outer(cls, rows: Sequence[int], ids: torch.Tensor) -> Entries:
        """All of `ids` in each of `rows`."""
        row = torch.tensor(rows, dtype=torch.int64)
        return cls(row.repeat_interleave(len(ids)), ids.repeat(len(rows)))

    @classmethod
    def listed(cls, pairs: Sequence[tuple[int, int]]) -> Entries:
        """These pairs of row and id."""
        columns = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
        return cls(columns[:, 0], columns[:, 1])


class LogitTable:
    """Logits by row and vocabulary id."""

    def __init__(self, logits: torch.Tensor, columns: Columns | None) -> None:
        self.logits = logits
        self._flat = logits.view(-1)
        self._width = logits.shape[1]
        self._columns = columns

    def places(self, parts: Sequence[Entries]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Where these stand, int64 on the logits' device, and which of them have a place (None: all)."""
        rows = torch.cat([part.rows for part in parts])
        columns = torch.cat([part.ids for part in parts])
        size = self._width if self._columns is None else len(self._columns.of)
        kept = columns < size
        if self._columns is not None:
            columns = self._columns.of.cpu()[columns.clamp(max=size - 1)]
            kept &= columns >= 0
        index = rows * self._width + columns
        if bool(kept.all()):
            return index.to(self.logits.device), None
        return index[kept].to(self.logits.device), kept

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """Logits there."""
        return self._flat.index_select(0, places)

    def put(self, places: torch.Tensor, values: torch.Tensor | float) -> None:
        """Put logits there; they do not meet, since an entry stands at most once in a call."""
        if isinstance(values, float):
            self._flat.index_fill_(0, places, values)
        else:
            self._flat.scatter_(0, places, values)

    def values(self, parts: Sequence[torch.Tensor], kept: torch.Tensor | None) -> torch.Tensor:
        """Values of entries, as `places` leaves them."""
        values = torch.cat(list(parts))
        return (values if kept is None else values[kept]).to(self.logits.device)

    def allow(self, rows: Sequence[int], ids: torch.Tensor) -> None:
        """Leave only these ids in these rows."""
        places, _ = self.places([Entries.outer(rows, ids)])
        values = self.at(places)
        for row in rows:
            self.logits[row].fill_(IMPOSSIBLE)
        self.put(places, values)

    def forbid(self, rows: Sequence[int], masks: torch.Tensor) -> None:
        """Leave only what masks allow: int32 [len(rows), words], bit x % 32 of word x // 32 for id x.

        Ids past a mask's end are forbidden.
        """
        octets = masks.to(self.logits.device).contiguous().view(torch.uint8)  # the lowest byte comes first
        eights = _FORBIDDEN.to(octets.device).index_select(0, octets.flatten().to(torch.int32))
        forbidden = eights.view(torch.bool).view(len(rows), -1)
        if self._columns is not None:
            forbidden = _fit(forbidden, len(self._columns.of))[:, self._columns.ids.to(octets.device)]
        forbidden = _fit(forbidden, self._width)
        for row, own in zip(rows, forbidden, strict=True):
            self.logits[row].masked_fill_(own, IMPOSSIBLE)


def _fit(forbidden: torch.Tensor, size: int) -> torch.Tensor:
    """Cut or filled up to `size` ids."""
    missing = size - forbidden.shape[1]
    if missing <= 0:
        return forbidden[:, :size]
    return torch.cat((forbidden, forbidden.new_ones(len(forbidden), missing)), 1)
