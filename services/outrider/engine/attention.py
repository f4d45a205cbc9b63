"""Attention of packed queries over the paged pool, one call per group of equal shape.

Query heads that share a KV head are folded into the query rows ([B, kv_heads, group * Q, D]): the kernel then
reads each key once, and few queries already fill the row count that its bits need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.engine.elementwise import apply_elementwise
from outrider.engine.kv_store import KvStore
from outrider.engine.plan import AttentionGroup, StepPlan
from outrider.engine.sequence import KV_MULTIPLE


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """How a layer attends."""

    scale: float
    window: int = 0  # sliding window in tokens, itself included; 0: none
    softcap: float = 0.0  # scores are cap * tanh(scores / cap); 0: no cap
    sinks: torch.Tensor | None = None  # [heads] logit of a key without value


def attend(
    plan: StepPlan, store: KvStore, layer: int, queries: torch.Tensor, kind: AttentionKind
) -> torch.Tensor:
    """Attention of `queries` [T, heads, key_dim] over the pool; gives [T, heads, value_dim].

    Rows of padding are zero or anything finite.
    """
    if len(plan.groups) == 1 and plan.groups[0].rows is None:
        return _alone(plan.groups[0], store, layer, queries, kind)
    output = queries.new_zeros(queries.shape[0], queries.shape[1], store.shapes[layer].value_dim)
    for group in plan.groups:
        batch, count = group.positions.shape
        picked = queries if group.rows is None else queries.index_select(0, group.rows)
        picked = picked[: batch * count].view(batch, count, *queries.shape[1:])
        result = _attend_group(group, store, layer, picked, kind).flatten(0, 1)
        output.index_copy_(0, group.target, result.index_select(0, group.source))
    return output


def _alone(
    group: AttentionGroup, store: KvStore, layer: int, queries: torch.Tensor, kind: AttentionKind
) -> torch.Tensor:
    rows, count = queries.shape[0], group.positions.shape[1]
    if count > rows:
        queries = F.pad(queries, (0, 0, 0, 0, 0, count - rows))
    result = _attend_group(group, store, layer, queries[None, :count], kind)[0]
    return result[:rows] if count >= rows else F.pad(result, (0, 0, 0, 0, 0, rows - count))


def _attend_group(
    group: AttentionGroup, store: KvStore, layer: int, queries: torch.Tensor, kind: AttentionKind
) -> torch.Tensor:
    batch, count, heads, _ = queries.shape
    shape = store.shapes[layer]
    folded = heads // shape.kv_heads
    keys, values = store.gather(layer, group.slots)
    query = queries.view(batch, count, shape.kv_heads, folded, shape.key_dim).permute(0, 2, 3, 1, 4)
    query = query.reshape(batch, shape.kv_heads, folded * count, shape.key_dim)
    mask = _mask(group, kind.window, folded, query.dtype)
    if kind.softcap or kind.sinks is not None:
        result = _scores_by_hand(query, keys, values, mask, kind)
    else:
        result = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=kind.scale)
    result = result.view(batch, shape.kv_heads, folded, count, shape.value_dim).permute(0, 3, 1, 2, 4)
    return result.reshape(batch, count, heads, shape.value_dim)


def _mask(group: AttentionGroup, window: int, folded: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [B, 1, folded * Q, L]: a KV offset is an absolute position."""
    mask = group.masks.get((window, folded))
    if mask is None:
        positions = group.positions[:, :, None]
        offsets = torch.arange(group.slots.shape[1], device=positions.device)
        hidden = offsets > positions
        if window:
            hidden |= offsets <= positions - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
        mask.masked_fill_(hidden, float("-inf"))
        mask = mask[:, None].repeat(1, 1, folded, 1)
        group.masks[(window, folded)] = mask
    return mask


def _scores_by_hand(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, kind: AttentionKind
) -> torch.Tensor:
    """Attention with a soft cap (Gemma 2, arXiv 2408.00118) or attention sinks (gpt-oss)."""
    scores = torch.matmul(query, keys.transpose(2, 3)).float() * kind.scale
    if kind.softcap:
        scores = apply_elementwise(torch.tanh, scores / kind.softcap) * kind.softcap
    scores = scores + mask.float()
    if kind.sinks is None:
        weights = torch.softmax(scores, -1)
    else:
        batch, kv_heads, rows, _ = scores.shape
        folded = kind.sinks.numel() // kv_heads
        sinks = kind.sinks.float().view(1, kv_heads, folded, 1, 1)
        sinks = sinks.expand(batch, kv_heads, folded, rows // folded, 1).reshape(batch, kv_heads, rows, 1)
        weights = torch.softmax(torch.cat((scores, sinks), -1), -1)[..., :-1]
    return _mixed(weights.to(query.dtype), values)


def _mixed(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`weights` [..., rows, L] times `values` [..., L, D], with the same bits whatever masked slots follow.

    In float32 some CPUs' kernels split the sum over L by its length: so it is split here, at fixed places.
    Behind the last slot that counts, weights are zero, and adding zero changes no bit.
    """
    if weights.dtype != torch.float32:
        return torch.matmul(weights, values)
    parts = zip(torch.split(weights, KV_MULTIPLE, -1), torch.split(values, KV_MULTIPLE, -2), strict=True)
    first, *others = (torch.matmul(weight, value) for weight, value in parts)
    for other in others:
        first += other
    return first
