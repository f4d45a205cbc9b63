"""Chooses, by measuring, the call shapes under which this machine's kernels give every row the same bits."""

from __future__ import annotations

import logging

import torch

from outrider.engine.attention import AttentionKind, attend
from outrider.engine.kv_store import KvStore, LayerShape
from outrider.engine.plan import AttentionGroup, StepPlan, query_bucket
from outrider.engine.rows import PolicyTable
from outrider.engine.runner import Runner
from outrider.engine.sequence import KV_MULTIPLE

_log = logging.getLogger(__name__)

_FOLDED_ROWS = (4, 8, 16, 32)  # query rows times heads that share a KV head
_QUERY_COUNTS = (8, 24, 64, 128)  # how many queries are tried together
_LENGTHS = (KV_MULTIPLE, 2 * KV_MULTIPLE, 4 * KV_MULTIPLE)


def calibrate_projections(runner: Runner, dtype: torch.dtype, device: str) -> int:
    """Give each linear layer its row policy.

    Returns:
        The least rows that all of them take; packed rows are padded to it.
    """
    known: PolicyTable = {}
    for projection in runner.projections:
        projection.calibrate(known, dtype, device)
    return max(projection.policy.least for projection in runner.projections)


def calibrate_attention(runner: Runner, dtype: torch.dtype, device: str) -> int:
    """The least queries of a path from which no layer's attention depends on their number."""
    distinct = {
        (shape, kind.softcap > 0, kind.sinks is not None): (shape, kind)
        for shape, kind in zip(runner.store.shapes, runner.attention_kinds, strict=True)
    }
    least = 1
    for shape, kind in distinct.values():
        for folded in _FOLDED_ROWS:
            queries = max(1, folded * shape.kv_heads // shape.heads)
            if _is_exact(shape, kind, queries, dtype, device):
                break
        _log.debug("attention %s: at least %d queries a path", shape, queries)
        least = max(least, queries)
    return least


def _is_exact(shape: LayerShape, kind: AttentionKind, least: int, dtype: torch.dtype, device: str) -> bool:
    generator = torch.Generator().manual_seed(0)
    slots = _LENGTHS[-1]
    store = KvStore([shape], slots, dtype, device)
    store.layers[0].copy_(torch.randn(slots, shape.width, generator=generator).to(dtype))
    count = _QUERY_COUNTS[-1]
    queries = torch.randn(count, shape.heads, shape.key_dim, generator=generator).to(device, dtype)
    positions = torch.arange(count) + KV_MULTIPLE - count
    alone = [
        _attend(store, queries[i : i + 1], positions[i : i + 1], KV_MULTIPLE, kind, least)
        for i in range(count)
    ]
    # All rows count: threads share the rows of one product among them, and the last part is another kernel.
    reference = torch.cat([rows[:1] for rows in alone])
    return all(
        torch.equal(_attend(store, queries[:n], positions[:n], length, kind, least)[:n], reference[:n])
        for n in _QUERY_COUNTS
        for length in _LENGTHS
    )


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
