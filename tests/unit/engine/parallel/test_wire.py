"""Commands survive the way to the other ranks; what is no command is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from outrider.core.errors import ProtocolError
from outrider.core.trees import TokenTree
from outrider.engine.parallel import wire
from outrider.engine.plan import PackedPart, StepPlan, make_plan
from outrider.engine.pool import BlockPool
from outrider.engine.sequence import Sequence

TREE = TokenTree((5, 6, 7, 8, 9), (-1, 0, 0, 1, 2))


def plan_of(*trees: TokenTree, committed: int = 20) -> StepPlan:
    pool = BlockPool(64, 16)
    parts = []
    for tree in trees:
        sequence = Sequence(pool, [1] * committed)
        assert sequence.grow(committed + len(tree)) is not None
        sequence.append([1] * committed)
        parts.append(PackedPart(sequence, tree, range(len(tree))))
    return make_plan(parts, least_rows=8, least_queries=4)


PLANS = {
    "chain": plan_of(TokenTree.chain([1, 2, 3])),
    "tree": plan_of(TREE),
    "batch": plan_of(TokenTree.chain([4] * 30), TREE, TokenTree.chain([9])),
    "long": plan_of(TokenTree.chain([4] * 100), committed=500),
}


def assert_same(one: StepPlan, other: StepPlan) -> None:
    assert one.count == other.count
    for name in ("token_ids", "positions", "slots"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    for group, twin in zip(one.groups, other.groups, strict=True):
        assert (group.rows is None) == (twin.rows is None)
        if group.rows is not None and twin.rows is not None:
            assert torch.equal(group.rows, twin.rows)
        for name in ("slots", "positions", "source", "target"):
            assert torch.equal(getattr(group, name), getattr(twin, name)), name


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("rows", [[], [0], [2, 1, 0, 0]])
def test_a_step_arrives_as_it_was(kind: str, rows: list[int]) -> None:
    wanted = torch.tensor(rows, dtype=torch.int64)
    words = wire.of_forward(PLANS[kind], wanted)
    assert words.dtype == torch.int64
    command, rest = wire.command_of(words)
    assert command is wire.Command.FORWARD
    plan, heard = wire.to_forward(rest)
    assert_same(plan, PLANS[kind])
    assert torch.equal(heard, wanted)


def test_moves_and_reads_arrive_as_they_were() -> None:
    source, target = torch.tensor([3, 9, 4]), torch.tensor([16, 17, 18])
    command, words = wire.command_of(wire.of_move(source, target))
    assert command is wire.Command.MOVE
    for heard, sent in zip(wire.to_move(words), (source, target), strict=True):
        assert torch.equal(heard, sent)
    command, words = wire.command_of(wire.of_read(target))
    assert command is wire.Command.READ
    assert torch.equal(wire.to_read(words), target)


def test_what_is_no_command_is_refused() -> None:
    for words in ([], [0], [99], [-1]):
        with pytest.raises(ProtocolError):
            wire.command_of(torch.tensor(words, dtype=torch.int64))


def test_a_command_that_lacks_words_or_has_too_many_is_refused() -> None:
    whole = wire.of_forward(PLANS["batch"], torch.tensor([1, 2]))
    generator = random.Random(1)
    for stop in [1, 2, len(whole) - 1, *(generator.randrange(1, len(whole)) for _ in range(20))]:
        with pytest.raises(ProtocolError, match="words"):
            wire.to_forward(wire.command_of(whole[:stop])[1])
    with pytest.raises(ProtocolError, match="expected"):
        wire.to_forward(wire.command_of(torch.cat((whole, whole[:1])))[1])
    with pytest.raises(ProtocolError, match="expected"):
        wire.to_move(wire.command_of(torch.tensor([wire.Command.MOVE, 1, 2, 3, 4]))[1])


def test_a_count_below_zero_is_refused() -> None:
    with pytest.raises(ProtocolError, match="below 0"):
        wire.to_read(wire.command_of(torch.tensor([wire.Command.READ, -1]))[1])


def test_a_plan_of_other_rows_differs() -> None:
    """The comparison of these tests can fail."""
    plan = PLANS["tree"]
    with pytest.raises(AssertionError):
        assert_same(plan, replace(plan, token_ids=plan.token_ids + 1))
