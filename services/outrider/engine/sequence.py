"""One sequence: its tokens, its blocks, and the slots of the pool that they stand for."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch

from outrider.core.errors import InternalError
from outrider.core.trees import TokenTree
from outrider.engine.pool import BlockPool, Parent

KV_MULTIPLE = 512
"""KV lengths of attention calls are multiples of this: then their bits do not depend on the length. torch's
CPU kernel sums in blocks of 512 keys, and on some CPUs a last block of 256 is summed in another order than a
whole block with its second half masked (in bf16 so seldom that a measurement at load may miss it)."""


class Sequence:
    """A sequence in the KV pool (implements SequenceHandle)."""

    def __init__(
        self, pool: BlockPool, token_ids: SequenceOf[int], *, reuse: int | None = None, salt: str = ""
    ) -> None:
        self._pool = pool
        self._salt = salt
        # At least the last token runs, so that its logits can be had.
        most = len(token_ids) - 1 if reuse is None else min(reuse, len(token_ids) - 1)
        self._blocks, self._entries = pool.match(token_ids[:most], salt)
        self._token_ids = list(token_ids[: len(self._blocks) * pool.block_size])
        self.cached_len = len(self._token_ids)
        self.slots = torch.zeros(KV_MULTIPLE, dtype=torch.int64)
        self.closed = False
        self.pending: TokenTree | None = None  # the tree of the last step, until it is committed
        self._map_slots(0)

    @property
    def kv_len(self) -> int:
        """Committed tokens whose KV is held."""
        return len(self._token_ids)

    @property
    def token_ids(self) -> SequenceOf[int]:
        """These tokens."""
        return self._token_ids

    @property
    def capacity(self) -> int:
        """Tokens that the blocks held have room for."""
        return len(self._blocks) * self._pool.block_size

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks held, in order."""
        return tuple(self._blocks)

    def grow(self, count: int) -> tuple[int, int] | None:
        """Make room for `count` tokens past kv_len.

        Returns:
            None if the pool is full (nothing changed), else a pair of blocks (from, to) whose content the
            caller must copy because the last one is shared, or (0, 0).
        """
        size = self._pool.block_size
        last = self.kv_len // size
        shared = self.kv_len % size > 0 and not self._pool.is_private(self._blocks[last])
        missing = max(0, -(-(self.kv_len + count) // size) - len(self._blocks))
        taken = self._pool.take(missing + shared)
        if taken is None:
            return None
        copy = (0, 0)
        start = len(self._blocks)
        if shared:
            copy = (self._blocks[last], taken.pop())
            self._blocks[last] = copy[1]
            self._pool.drop([copy[0]])
            start = last
        self._blocks += taken
        self._map_slots(start)
        return copy

    def append(self, token_ids: SequenceOf[int]) -> None:
        """Commit tokens whose KV stands in the slots after kv_len; full blocks join the prefix cache."""
        self._token_ids += token_ids
        size = self._pool.block_size
        while (len(self._entries) + 1) * size <= len(self._token_ids):
            index = len(self._entries)
            parent: Parent = self._entries[-1] if self._entries else self._salt
            tokens = self._token_ids[index * size : (index + 1) * size]
            self._entries.append(self._pool.register(self._blocks[index], parent, tokens))

    def truncate(self, kv_len: int) -> None:
        """Forget committed tokens past `kv_len` and give back blocks that hold none of the rest.

        Raises:
            InternalError: `kv_len` is not between 0 and the present one.
        """
        if not 0 <= kv_len <= self.kv_len:
            raise InternalError(f"cannot roll back to {kv_len}, the sequence holds {self.kv_len} tokens")
        size = self._pool.block_size
        kept = -(-kv_len // size)
        self._pool.drop(self._blocks[kept:])
        del self._blocks[kept:]
        del self._token_ids[kv_len:]
        del self._entries[kv_len // size :]
        self.slots[kept * size :] = 0
        self.pending = None

    def close(self) -> None:
        """Give all blocks back. Idempotent."""
        self.truncate(0)
        self.closed = True

    def _map_slots(self, start: int) -> None:
        size = self._pool.block_size
        needed = -(-self.capacity // KV_MULTIPLE) * KV_MULTIPLE
        if needed > len(self.slots):
            grown = torch.zeros(max(needed, 2 * len(self.slots)), dtype=torch.int64)
            grown[: len(self.slots)] = self.slots
            self.slots = grown
        if start < len(self._blocks):
            first = torch.tensor(self._blocks[start:], dtype=torch.int64) * size
            self.slots[start * size : self.capacity] = (first[:, None] + torch.arange(size)).flatten()
