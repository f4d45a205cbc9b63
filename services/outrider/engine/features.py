"""Hidden states beside the KV: for each feature one row per token slot.

They share the KV's slots, so whatever is done to KV (prefix sharing, copies on write, commits of paths of
trees, rollback, eviction) holds for them too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from outrider.core.errors import OverloadedError
from outrider.engine.kv_store import zeros


class FeatureStore:
    """Rows of all slots, bf16 whatever the model's type. Holds nothing until it is told what to keep."""

    def __init__(self, slots: int, width: int, device: str) -> None:
        """`slots` as the KV store has, `width` elements a row."""
        self._slots = slots
        self._width = width
        self._device = device
        self._rows: dict[str, torch.Tensor] = {}

    @property
    def names(self) -> Collection[str]:
        """What is kept."""
        return self._rows.keys()

    def keep(self, names: Collection[str]) -> bool:
        """Keep these from now on, and no others. Rows of what is new are zero in all slots written before.

        Returns:
            Whether any is new.

        Raises:
            OverloadedError: there is no memory for them; nothing changed.
        """
        try:
            fresh = {name: self._zeros() for name in names if name not in self._rows}
        except (MemoryError, RuntimeError) as error:
            need = len(names) * self._slots * self._width * torch.bfloat16.itemsize
            raise OverloadedError(
                f"no memory for features {sorted(names)}: they take {need} bytes"
            ) from error
        kept = {name: rows for name, rows in self._rows.items() if name in names}
        self._rows = kept | fresh
        return bool(fresh)

    def write(self, slots: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> None:
        """Store the first rows of each feature (any float type, rounded to bf16) into `slots` [n]."""
        for name, values in rows.items():
            self._rows[name].index_copy_(0, slots, values[: len(slots)].to(torch.bfloat16))

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy rows of slots `source` [n] to slots `target` [n]; they may overlap."""
        for rows in self._rows.values():
            rows.index_copy_(0, target, rows.index_select(0, source))

    def read(self, name: str, slots: torch.Tensor) -> torch.Tensor:
        """A copy of the rows of `slots` [n]: bf16 [n, width], on the CPU."""
        return self._rows[name].index_select(0, slots).cpu()

    def _zeros(self) -> torch.Tensor:
        return zeros(self._slots, self._width, torch.bfloat16, self._device)
