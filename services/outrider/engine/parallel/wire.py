"""What rank 0 tells the others: commands as int64 words, and nothing else.

    FORWARD    a StepPlan and the rows whose logits are wanted
    MOVE       slots to copy from, slots to copy to
    READ       slots whose KV rank 0 wants to see
    CALIBRATE  measure this machine's kernels
    STOP       the end

Nothing is ever unpickled: a follower that is sent nonsense fails, it does not run it.
"""

from __future__ import annotations

from enum import IntEnum

import torch

from outrider.core.errors import ProtocolError
from outrider.engine.plan import AttentionGroup, StepPlan

_INT64 = torch.int64


class Command(IntEnum):
    """The first word."""

    FORWARD = 1
    MOVE = 2
    READ = 3
    CALIBRATE = 4
    STOP = 5


class Words:
    """Reads words one after the other."""

    def __init__(self, words: torch.Tensor) -> None:
        """`words`: int64 [n]."""
        self._words = words
        self._next = 0

    def number(self) -> int:
        """The next word, which is no negative number.

        Raises:
            ProtocolError: it is, or there is none.
        """
        value = int(self.take(1)[0])
        if value < 0:
            raise ProtocolError(f"word {self._next - 1} of a command is {value}, expected none below 0")
        return value

    def take(self, count: int) -> torch.Tensor:
        """The next `count` words, int64 [count].

        Raises:
            ProtocolError: there are not so many.
        """
        stop = self._next + count
        if stop > len(self._words):
            raise ProtocolError(f"a command has {len(self._words)} words, expected {stop} or more")
        taken = self._words[self._next : stop]
        self._next = stop
        return taken

    def end(self) -> None:
        """Raises:
        ProtocolError: there are more words.
        """
        if self._next != len(self._words):
            raise ProtocolError(f"a command has {len(self._words)} words, expected {self._next}")


def command_of(words: torch.Tensor) -> tuple[Command, Words]:
    """Which command it is, and the rest.

    Raises:
        ProtocolError: there is no such command.
    """
    rest = Words(words)
    number = rest.number()
    try:
        return Command(number), rest
    except ValueError:
        raise ProtocolError(f"there is no command {number}") from None


def bare(command: Command) -> torch.Tensor:
    """A command that is nothing but its name."""
    return torch.tensor([command], dtype=_INT64)


def of_forward(plan: StepPlan, rows: torch.Tensor) -> torch.Tensor:
    """A step: see Runner.forward."""
    groups = [_of_group(group) for group in plan.groups]
    head = torch.tensor([Command.FORWARD, len(plan.token_ids), plan.count, len(rows), len(groups)])
    return torch.cat([head, plan.token_ids, plan.positions, plan.slots, rows, *groups])


def to_forward(words: Words) -> tuple[StepPlan, torch.Tensor]:
    """Plan and rows.

    Raises:
        ProtocolError: they are not what `of_forward` gives.
    """
    packed, count, wanted, groups = (words.number() for _ in range(4))
    token_ids, positions = words.take(packed), words.take(packed)
    slots, rows = words.take(count), words.take(wanted)
    plan = StepPlan(token_ids, positions, count, slots, [_to_group(words) for _ in range(groups)])
    words.end()
    return plan, rows


def of_move(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Copies of slots `source` [n] to slots `target` [n]."""
    head = torch.tensor([Command.MOVE, len(source)])
    return torch.cat([head, source.cpu(), target.cpu()])


def to_move(words: Words) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and target.

    Raises:
        ProtocolError: they are not what `of_move` gives.
    """
    count = words.number()
    source, target = words.take(count), words.take(count)
    words.end()
    return source, target


def of_read(slots: torch.Tensor) -> torch.Tensor:
    """A look at slots [n]."""
    return torch.cat([torch.tensor([Command.READ, len(slots)]), slots.cpu()])


def to_read(words: Words) -> torch.Tensor:
    """The slots.

    Raises:
        ProtocolError: they are not what `of_read` gives.
    """
    slots = words.take(words.number())
    words.end()
    return slots


def _of_group(group: AttentionGroup) -> torch.Tensor:
    paths, queries = group.positions.shape
    rows = [] if group.rows is None else [group.rows]
    head = torch.tensor([len(rows), paths, queries, group.slots.shape[1], len(group.source)])
    return torch.cat(
        [head, *rows, group.slots.flatten(), group.positions.flatten(), group.source, group.target]
    )


def _to_group(words: Words) -> AttentionGroup:
    picked, paths, queries, length, count = (words.number() for _ in range(5))
    return AttentionGroup(
        rows=words.take(paths * queries) if picked else None,
        slots=words.take(paths * length).view(paths, length),
        positions=words.take(paths * queries).view(paths, queries),
        source=words.take(count),
        target=words.take(count),
    )
