"""Blocks are never leaked, never handed out twice, and counted exactly, whatever the order of operations."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.core.errors import InternalError
from outrider.core.trees import TokenTree
from outrider.engine.pool import BlockPool
from outrider.engine.sequence import Sequence

BLOCK = 4
BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    """Sequences over a two-letter alphabet (so that prefixes meet) come, grow, shrink and go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, BLOCK)
        self.live: list[Sequence] = []
        self.content: dict[int, tuple[int, ...]] = {}  # what the block of a committed prefix stands for

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24))
    def open(self, tokens: list[int]) -> None:
        sequence = Sequence(self.pool, tokens)
        assert sequence.cached_len < len(tokens)
        assert list(sequence.token_ids) == tokens[: sequence.kv_len]
        self.check_content(sequence)
        self.live.append(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        before = (sequence.blocks, self.pool.available)
        if sequence.grow(len(tokens)) is None:
            assert (sequence.blocks, self.pool.available) == before
            return
        written = sequence.blocks[sequence.kv_len // BLOCK :]
        assert all(self.pool.is_private(block) for block in written)
        sequence.append(tokens)
        for index in range(len(sequence.token_ids) // BLOCK):
            block = sequence.blocks[index]
            if block in written:
                self.content[block] = tuple(sequence.token_ids[: (index + 1) * BLOCK])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        sequence.truncate(data.draw(st.integers(0, sequence.kv_len)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        sequence.close()
        sequence.close()

    @rule()
    def clear_cache(self) -> None:
        self.pool.clear_cache()
        assert self.pool.cached == 0

    def check_content(self, sequence: Sequence) -> None:
        for index in range(sequence.kv_len // BLOCK):
            assert self.content[sequence.blocks[index]] == tuple(sequence.token_ids[: (index + 1) * BLOCK])

    @invariant()
    def references_are_exact(self) -> None:
        held = Counter(block for sequence in self.live for block in sequence.blocks)
        assert {block: self.pool.references(block) for block in range(1, BLOCKS + 1)} == {
            block: held[block] for block in range(1, BLOCKS + 1)
        }
        assert self.pool.used == len(held)
        assert self.pool.used + self.pool.available == BLOCKS

    @invariant()
    def full_blocks_hold_their_tokens(self) -> None:
        for sequence in self.live:
            self.check_content(sequence)
            slots = sequence.slots[: sequence.capacity].tolist()
            assert slots == [block * BLOCK + i for block in sequence.blocks for i in range(BLOCK)]
            assert not sequence.slots[sequence.capacity :].any()


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_all_blocks_come_back() -> None:
    pool = BlockPool(4, 2)
    taken = pool.take(4)
    assert taken is not None and sorted(taken) == [1, 2, 3, 4]
    assert pool.take(1) is None
    pool.drop(taken)
    assert (pool.used, pool.available, pool.cached) == (0, 4, 0)


def test_a_double_free_is_refused() -> None:
    pool = BlockPool(2, 2)
    taken = pool.take(1)
    assert taken is not None
    pool.drop(taken)
    with pytest.raises(InternalError, match="nobody holds"):
        pool.drop(taken)


def test_the_deepest_block_of_the_oldest_chain_is_evicted_first() -> None:
    pool = BlockPool(4, 2)
    sequence = Sequence(pool, [1, 2, 3, 4, 5])
    sequence.grow(4)
    sequence.append([1, 2, 3, 4])
    sequence.close()
    assert pool.cached == 2
    assert pool.take(3) is not None  # two free ones and one of the cached
    assert Sequence(pool, [1, 2, 3, 4, 5]).cached_len == 2


def test_without_prefix_cache_nothing_is_shared() -> None:
    pool = BlockPool(4, 2, prefix_cache=False)
    sequence = Sequence(pool, [1, 2, 3])
    sequence.grow(2)
    sequence.append([1, 2])
    sequence.close()
    assert pool.cached == 0
    assert Sequence(pool, [1, 2, 3]).cached_len == 0


def test_a_prefix_of_one_salt_is_never_found_by_another() -> None:
    pool = BlockPool(16, 2)
    tokens = [1, 2, 3, 4, 5]
    salts = ("", "a", "b", "0", "1")  # entry numbers are no salts
    for salt in salts:
        sequence = Sequence(pool, tokens, salt=salt)
        assert sequence.cached_len == 0
        sequence.grow(4)
        sequence.append(tokens[:4])
        assert Sequence(pool, tokens, salt=salt).blocks == sequence.blocks
    assert Sequence(pool, tokens, salt="c").cached_len == 0
    assert len({Sequence(pool, tokens, salt=salt).blocks for salt in salts}) == len(salts)


def test_rolling_back_into_a_shared_block_copies_it_before_writing() -> None:
    pool = BlockPool(8, 4)
    first = Sequence(pool, [1, 2, 3, 4, 5])
    first.grow(4)
    first.append([1, 2, 3, 4])
    second = Sequence(pool, [1, 2, 3, 4, 9])
    assert second.blocks == first.blocks
    second.truncate(2)
    copy = second.grow(1)
    assert copy is not None and copy[0] == first.blocks[0] and copy[1] == second.blocks[0] != copy[0]
    assert pool.references(first.blocks[0]) == 1
    assert TokenTree.chain(second.token_ids).token_ids == (1, 2)
