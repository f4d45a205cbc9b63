"""Blocks of the KV pool: who holds them, and which hold a prefix worth keeping.

Pure bookkeeping, no tensors. Block 0 is never handed out: its slots stand in for padding.

A block is *free*, *held* (reference count >= 1), or *cached* (count 0, but it holds the KV of a
known prefix; taken back least recently used first when no free block is left). Only full blocks of
committed tokens enter the prefix cache. Its key is the entry of the block before plus the
block's own tokens, compared exactly: no hash can collide, and a chain whose start was
evicted can never be matched by mistake, since entry numbers are not used twice. Before the first block
stands the salt of its sequence, so blocks of one salt are never found by another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.errors import InternalError

Parent = int | str
"""What a block comes after: the entry of the block before; the salt, if it is the first one."""

_Key = tuple[Parent, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    key: _Key
    block: int


class BlockPool:
    """Reference-counted blocks with a prefix cache over them.

    Args:
        blocks: usable blocks (numbered 1 to `blocks`).
        block_size: tokens per block.
        prefix_cache: keep full blocks for sequences that start alike.
    """

    def __init__(self, blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        self.total = blocks
        self.block_size = block_size
        self._prefix_cache = prefix_cache
        self._free = list(range(blocks, 0, -1))
        self._references = [0] * (blocks + 1)
        self._by_key: dict[_Key, _Entry] = {}
        self._by_block: dict[int, _Entry] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached blocks that nobody holds, oldest first
        self._next_entry = 1

    @property
    def available(self) -> int:
        """Blocks that can be had: free ones and idle cached ones."""
        return len(self._free) + len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks held by the prefix cache alone."""
        return len(self._idle)

    @property
    def used(self) -> int:
        """Blocks held by somebody."""
        return self.total - self.available

    def references(self, block: int) -> int:
        """How many hold this block."""
        return self._references[block]

    def is_private(self, block: int) -> bool:
        """True if exactly one holds it and the prefix cache does not know it: it may be written to."""
        return self._references[block] == 1 and block not in self._by_block

    def take(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each; None, and nothing changed, if there are not that many."""
        if count > self.available:
            return None
        taken = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._references[block] = 1
            taken.append(block)
        return taken

    def drop(self, blocks: Sequence[int]) -> None:
        """Give one reference of each block back. The last ones of the list become the oldest to evict.

        Raises:
            InternalError: a block that nobody holds.
        """
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise InternalError(f"block {block} was given back but nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._by_block:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def match(self, token_ids: Sequence[int], salt: str = "") -> tuple[list[int], list[int]]:
        """The longest cached chain of full blocks that `token_ids` starts with, of this salt.

        Returns:
            Blocks, with one reference taken on each, and their entry numbers.
        """
        blocks: list[int] = []
        entries: list[int] = []
        parent: Parent = salt
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            entry = self._by_key.get((parent, tuple(token_ids[start : start + self.block_size])))
            if entry is None:
                break
            self._references[entry.block] += 1
            self._idle.pop(entry.block, None)
            blocks.append(entry.block)
            entries.append(entry.number)
            parent = entry.number
        return blocks, entries

    def register(self, block: int, parent: Parent, token_ids: Sequence[int]) -> int:
        """Tell the prefix cache of a full block of committed tokens after `parent`.

        If an equal block is known already, that one stays and its number is returned.

        Returns:
            The entry number, `parent` of the block after this one.
        """
        key = (parent, tuple(token_ids))
        known = self._by_key.get(key)
        if known is not None:
            return known.number
        entry = _Entry(self._next_entry, key, block)
        self._next_entry += 1
        if self._prefix_cache:
            self._forget(block)
            self._by_key[key] = entry
            self._by_block[block] = entry
        return entry.number

    def clear_cache(self) -> None:
        """Forget all cached prefixes; idle cached blocks become free."""
        self._free.extend(self._idle)
        self._idle.clear()
        self._by_key.clear()
        self._by_block.clear()

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        entry = self._by_block.pop(block, None)
        if entry is not None:
            del self._by_key[entry.key]
