"""From the items of a step to packed rows and attention calls.

All tokens of all items stand in one packed row dimension; projections know nothing of sequences. Attention
runs per *path*: a chain is one path, a tree one for each leaf. Within a path a token's KV stands at the
offset of its absolute position, exactly as in plain decoding, so a node's bits do not depend on
its siblings. A node that several paths share is queried in one of them only.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch

from outrider.core.trees import TokenTree
from outrider.engine.rows import bucket
from outrider.engine.sequence import KV_MULTIPLE, Sequence

_MOST_GATHERED = 32_768  # slots of one gather: bounds its memory


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Nodes of one sequence's tree that run in this forward (all, or a slice in the slow mode)."""

    sequence: Sequence
    tree: TokenTree
    nodes: range


@dataclass(slots=True)
class AttentionGroup:
    """Paths whose attention is one call: B paths, Q query rows each, L slots of KV each."""

    rows: torch.Tensor | None  # int64 [B * Q] packed rows of the queries; None: rows 0 to Q-1
    slots: torch.Tensor  # int64 [B, L]
    positions: torch.Tensor  # int64 [B, Q] absolute positions of the queries
    source: torch.Tensor  # int64 [n] which of the B * Q outputs count
    target: torch.Tensor  # int64 [n] their packed rows
    masks: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)  # made on first use


@dataclass(slots=True)
class StepPlan:
    """One packed forward."""

    token_ids: torch.Tensor  # int64 [T], padded to a bucket
    positions: torch.Tensor  # int64 [T]
    count: int  # rows that are not padding
    slots: torch.Tensor  # int64 [count] where the rows' KV goes
    groups: list[AttentionGroup]


@dataclass(slots=True)
class _Path:
    slots: torch.Tensor  # int64 [L]
    rows: list[int]  # packed rows queried
    positions: list[int]


def node_slots(sequence: Sequence, tree: TokenTree) -> torch.Tensor:
    """Slots of the tree's nodes: in order of the nodes, right after the committed tokens."""
    return sequence.slots[sequence.kv_len : sequence.kv_len + len(tree)]


def make_plan(parts: SequenceOf[PackedPart], *, least_rows: int, least_queries: int) -> StepPlan:
    """Lay out one forward.

    Args:
        parts: what runs, in order of the packed rows.
        least_rows: pad the packed rows to at least this many.
        least_queries: pad the query rows of a path to at least this many.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[torch.Tensor] = []
    paths: list[_Path] = []
    for part in parts:
        first = len(token_ids)
        base = part.sequence.kv_len
        depths = part.tree.depths()
        token_ids += part.tree.token_ids[part.nodes.start : part.nodes.stop]
        positions += [base + depths[node] for node in part.nodes]
        slots.append(node_slots(part.sequence, part.tree)[part.nodes.start : part.nodes.stop])
        paths += _paths(part, first, depths)
    count = len(token_ids)
    padding = bucket(max(count, least_rows)) - count
    return StepPlan(
        # Copies, not zeros: with one token in the slow mode, a mixture's experts then see 8 rows or none.
        token_ids=torch.tensor(token_ids + token_ids[:1] * padding),
        positions=torch.tensor(positions + positions[:1] * padding),
        count=count,
        slots=slots[0] if len(slots) == 1 else torch.cat(slots),
        groups=_group(paths, count, least_queries),
    )


def _paths(part: PackedPart, first: int, depths: list[int]) -> list[_Path]:
    base = part.sequence.kv_len
    if part.tree.is_chain:
        end = base + part.nodes.stop
        slots = _padded_slots(part.sequence, end)
        return [
            _Path(slots, [first + i for i in range(len(part.nodes))], [base + node for node in part.nodes])
        ]
    own = node_slots(part.sequence, part.tree)
    paths = []
    for leaf, nodes in _queried(part).items():
        line = part.tree.path_to(leaf)
        slots = _padded_slots(part.sequence, base + len(line))
        slots[base : base + len(line)] = own[torch.tensor(line)]
        rows = [first + node - part.nodes.start for node in nodes]
        paths.append(_Path(slots, rows, [base + depths[node] for node in nodes]))
    return paths


def _queried(part: PackedPart) -> dict[int, list[int]]:
    """For each leaf the nodes that are queried in its path: each node once, where the fewest are so far.

    Paths of as few rows as can be share one call more often, and padding them costs less.
    """
    parents = part.tree.parents
    inner = set(parents[: part.nodes.stop])
    fresh = {leaf: [leaf] for leaf in part.nodes if leaf not in inner}
    below: dict[int, list[int]] = {node: [] for node in part.nodes}
    for leaf in fresh:
        for node in part.tree.path_to(leaf):
            if node in below and node != leaf:
                below[node].append(leaf)
    for node in reversed(part.nodes):
        if node in inner:
            fresh[min(below[node], key=lambda leaf: len(fresh[leaf]))].append(node)
    return {leaf: sorted(nodes) for leaf, nodes in fresh.items()}


def _padded_slots(sequence: Sequence, end: int) -> torch.Tensor:
    length = -(-end // KV_MULTIPLE) * KV_MULTIPLE
    slots = sequence.slots[:length].clone()
    # Masked slots point to block 0: another sequence's values there, were they ever NaN, would spread.
    slots[end:] = 0
    return slots


def _group(paths: list[_Path], count: int, least_queries: int) -> list[AttentionGroup]:
    by_shape: dict[tuple[int, int], list[_Path]] = {}
    for path in paths:
        by_shape.setdefault((query_bucket(len(path.rows), least_queries), len(path.slots)), []).append(path)
    groups = []
    for (queries, length), members in by_shape.items():
        most = max(1, _MOST_GATHERED // length)
        for start in range(0, len(members), most):
            groups.append(_make_group(members[start : start + most], queries, count))
    return groups


def query_bucket(rows: int, least: int) -> int:
    """Query rows of a path are padded to this: `least` doubled up to 64, then multiples of 64."""
    size = least
    while size < rows:
        size *= 2
    return size if size <= 64 else -(-rows // 64) * 64


def _make_group(members: list[_Path], queries: int, count: int) -> AttentionGroup:
    rows: list[int] = []
    positions: list[list[int]] = []
    source: list[int] = []
    target: list[int] = []
    for index, path in enumerate(members):
        padding = queries - len(path.rows)
        source += range(index * queries, index * queries + len(path.rows))
        target += path.rows
        rows += path.rows + path.rows[:1] * padding
        positions.append(path.positions + path.positions[:1] * padding)
    alone = len(members) == 1 and target == list(range(count))
    return AttentionGroup(
        rows=None if alone else torch.tensor(rows),
        slots=torch.stack([path.slots for path in members]),
        positions=torch.tensor(positions),
        source=torch.tensor(source),
        target=torch.tensor(target),
    )
