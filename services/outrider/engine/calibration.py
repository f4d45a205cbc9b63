"""Chooses, by measuring, the call shapes under which this machine's kernels give every row the same bits."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from outrider.engine.attention import AttentionKind, attend
from outrider.engine.kv_store import KvStore, LayerShape
from outrider.engine.plan import AttentionGroup, StepPlan, query_bucket
from outrider.engine.rows import PolicyTable, Projection, bucket
from outrider.engine.sequence import KV_MULTIPLE

_log = logging.getLogger(__name__)

_FOLDED_ROWS = (4, 8, 16, 32)  # query rows times heads that share a KV head
_QUERY_COUNTS = (8, 24, 64, 128, 256)  # how many queries are tried together


class Calibrated(Protocol):
    """What of a runner is calibrated."""

    @property
    def store(self) -> KvStore: ...

    @property
    def attention_kinds(self) -> list[AttentionKind]: ...

    @property
    def projections(self) -> list[Projection]: ...


@dataclass(frozen=True, slots=True)
class Least:
    """What plans are padded to."""

    rows: int  # packed rows of a forward
    queries: int  # query rows of a path


def calibrate(runner: Calibrated, dtype: torch.dtype, device: str) -> Least:
    """Give each linear layer its row policy, and find what plans have to keep to."""
    rows = bucket(calibrate_projections(runner, dtype, device))
    return Least(rows, calibrate_attention(runner, dtype, device))


def calibrate_projections(runner: Calibrated, dtype: torch.dtype, device: str) -> int:
    """Give each linear layer its row policy.

    Returns:
        The least rows that all of them take; packed rows are padded to it.
    """
    known: PolicyTable = {}
    for projection in runner.projections:
        projection.calibrate(known, dtype, device)
    return max(projection.policy.least for projection in runner.projections)


def calibrate_attention(runner: Calibrated, dtype: torch.dtype, device: str) -> int:
    """The least queries of a path from which attention depends neither on their number nor on later KV."""
    distinct = {
        (shape, kind.softcap > 0, kind.sinks is not None): (shape, kind)
        for shape, kind in zip(runner.store.shapes, runner.attention_kinds, strict=True)
    }
    threads = torch.get_num_threads()
    return max(
        _known_least(shape, kind, dtype, threads)
        if device == "cpu" and kind.sinks is None
        else _least_queries(shape, kind, dtype, device)
        for shape, kind in distinct.values()
    )


@cache
def _known_least(shape: LayerShape, kind: AttentionKind, dtype: torch.dtype, threads: int) -> int:
    """Measured once in a process: on a CPU the kernels and their threads decide, not the model's weights."""
    return _least_queries(shape, kind, dtype, "cpu")


def _least_queries(shape: LayerShape, kind: AttentionKind, dtype: torch.dtype, device: str) -> int:
    """If no number is exact, the largest: the probe has the last word."""
    least = 1
    for folded in _FOLDED_ROWS:
        least = max(1, folded * shape.kv_heads // shape.heads)
        if _is_exact(shape, kind, least, dtype, device):
            _log.debug("attention %s: at least %d queries a path", shape, least)
            return least
    _log.warning("attention %s in %s: bits depend on the KV length, whatever the probe says", shape, dtype)
    return least


def _is_exact(shape: LayerShape, kind: AttentionKind, least: int, dtype: torch.dtype, device: str) -> bool:
    """Whether queries near two KV lengths are the same in any number, and at longer lengths."""
    generator = torch.Generator().manual_seed(0)
    slots = 4 * KV_MULTIPLE
    store = KvStore([shape], slots, dtype, device)
    store.layers[0].copy_(torch.randn(slots, shape.width, generator=generator).to(dtype))
    count = _QUERY_COUNTS[-1]
    queries = torch.randn(count, shape.heads, shape.key_dim, generator=generator).to(device, dtype)
    for end in (KV_MULTIPLE, 2 * KV_MULTIPLE):
        positions = torch.arange(end - count, end)
        # All rows count: threads share the rows of one product, and the last part is another kernel.
        alone = [
            _attend(store, queries[i : i + 1], positions[i : i + 1], end, kind, least) for i in range(count)
        ]
        reference = torch.cat([rows[:1] for rows in alone])
        for length in (end, end + KV_MULTIPLE, end + 2 * KV_MULTIPLE):
            for n in _QUERY_COUNTS:
                together = _attend(store, queries[:n], positions[:n], length, kind, least)
                if not torch.equal(together[:n], reference[:n]):
                    return False
    return True


def _attend(
    store: KvStore,
    queries: torch.Tensor,
    positions: torch.Tensor,
    length: int,
    kind: AttentionKind,
    least: int,
) -> torch.Tensor:
    count = query_bucket(len(positions), least)
    padded = torch.cat((positions, positions[:1].expand(count - len(positions))))
    rows = torch.arange(len(positions))
    group = AttentionGroup(None, torch.arange(length)[None], padded[None], rows, rows)
    plan = StepPlan(rows, positions, len(positions), rows, [group])
    return attend(plan, store, 0, queries, kind)
