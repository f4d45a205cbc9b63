"""The target's hidden states of one session, on their way from the wire to the head."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import torch

from outrider.core.errors import ProtocolError
from outrider.wire.messages import FeatureBlock


class FeatureRows:
    """Rows that came and did not run yet. They go on without a gap; the first may stand anywhere."""

    def __init__(self, names: Sequence[str], width: int) -> None:
        """Args:
        names: of the features, in the order in which the head joins them; one may stand twice.
        width: elements of a row of one feature.
        """
        self._names = tuple(names)
        self._width = width
        self._parts: dict[str, deque[torch.Tensor]] = {name: deque() for name in names}
        self._ends = dict.fromkeys(names, -1)  # position after the last row of each; -1: none came
        self._first = -1  # position of the first row of all
        self._taken = 0  # rows taken so far

    @property
    def first(self) -> int:
        """Position of the first row that ever came; -1: none has."""
        return self._first

    @property
    def end(self) -> int:
        """Position after the last row that all features have; `first` or -1 if there is none."""
        return min(self._ends.values())

    @property
    def waiting(self) -> int:
        """Rows that all features have and that were not taken."""
        return max(0, self.end - self._first - self._taken) if self._first >= 0 else 0

    @property
    def lagging(self) -> int:
        """Rows of one feature at least that another one lacks: nothing can be done with them yet."""
        return max(self._ends.values()) - max(self.end, self._first)

    def add(self, blocks: Sequence[FeatureBlock], *, most: int) -> int:
        """Take rows in.

        Args:
            blocks: of any of the features, those of each one in order.
            most: positions that may have features: those of all committed tokens but the last.

        Returns:
            How many more rows wait now.

        Raises:
            ProtocolError: a feature that was not asked for, a gap, another width, rows of tokens that are not
                committed, or values that are not finite.
        """
        before = self.waiting
        for block in blocks:
            self._check(block, most)
            if not block.rows:
                continue
            if self._first < 0:
                self._first = block.first_position
            self._parts[block.name].append(_finite(block))
            self._ends[block.name] = block.first_position + block.rows
        return self.waiting - before

    def take(self, count: int) -> torch.Tensor:
        """The next rows, at most `waiting`: bf16 [count, features * width], the features side by side."""
        self._taken += count
        fronts = {name: _front(parts, count) for name, parts in self._parts.items()}
        return torch.cat([fronts[name] for name in self._names], 1)

    def _check(self, block: FeatureBlock, most: int) -> None:
        _check_block(block, self._ends, self._width)
        end = self._ends[block.name]
        expected = self._first if end < 0 else end
        if block.rows and expected >= 0 and block.first_position != expected:
            raise ProtocolError(
                f"feature {block.name} goes on at position {block.first_position}, {expected} was next"
            )
        _check_end(block, most)


def last_row(
    blocks: Sequence[FeatureBlock], name: str, width: int, *, most: int
) -> tuple[int, torch.Tensor] | None:
    """The row that stands last, of a head that needs no other.

    Args:
        blocks: as they came.
        name: of the feature that was asked for.
        width: elements of a row.
        most: positions that may have features: those of all committed tokens but the last.

    Returns:
        Its position, and bf16 [width]; None: there is none.

    Raises:
        ProtocolError: as `FeatureRows.add`, but for gaps, which do not matter.
    """
    found: tuple[int, torch.Tensor] | None = None
    for block in blocks:
        _check_block(block, (name,), width)
        _check_end(block, most)
        if block.rows:
            row = _finite(block)[-1].clone()  # not a view that keeps all others
            position = block.first_position + block.rows - 1
            found = (position, row) if found is None or found[0] < position else found
    return found


def _finite(block: FeatureBlock) -> torch.Tensor:
    """Its rows, bf16 [rows, columns]."""
    rows = torch.frombuffer(bytearray(block.data), dtype=torch.bfloat16)
    if not bool(torch.isfinite(rows).all()):
        raise ProtocolError(f"feature {block.name} holds values that are not finite")
    return rows.view(block.rows, block.columns)


def _check_block(block: FeatureBlock, asked: Collection[str], width: int) -> None:
    if block.name not in asked:
        raise ProtocolError(f"feature {block.name!r} was not asked for, only {sorted(asked)}")
    if block.columns != width:
        raise ProtocolError(
            f"feature {block.name} has {block.columns} elements a row, the head takes {width}"
        )
    if len(block.data) != 2 * block.rows * block.columns:
        raise ProtocolError(
            f"feature {block.name} has {len(block.data)} bytes, "
            f"{block.rows} rows of {block.columns} bf16 elements have {2 * block.rows * block.columns}"
        )


def _check_end(block: FeatureBlock, most: int) -> None:
    if block.first_position + block.rows > most:
        raise ProtocolError(
            f"feature {block.name} ends at position {block.first_position + block.rows}, "
            f"{most} tokens can have features"
        )


def _front(parts: deque[torch.Tensor], count: int) -> torch.Tensor:
    """Take the first `count` rows of parts one after another."""
    front: list[torch.Tensor] = []
    while count:
        part = parts.popleft()
        front.append(part[:count])
        if len(part) > count:
            parts.appendleft(part[count:])
        count -= len(front[-1])
    return front[0] if len(front) == 1 else torch.cat(front)
