"""Steps of an EAGLE head over many sequences at once, in one packed forward.

A sequence holds KV of rows with true features only. What is drafted stands above that, as a tree that grows
level by level, and is forgotten when the next true rows run.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from outrider.config.schema import EngineConfig
from outrider.core.errors import InternalError
from outrider.core.trees import TokenTree
from outrider.drafting.heads.runner import HeadRunner
from outrider.engine.api import PoolUsage
from outrider.engine.calibration import calibrate_attention, calibrate_projections
from outrider.engine.plan import PackedPart, StepPlan, make_plan
from outrider.engine.pool import BlockPool
from outrider.engine.rows import bucket
from outrider.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class TrueRows:
    """Rows of committed tokens, which the sequence keeps."""

    sequence: Sequence
    token_ids: SequenceOf[int]  # of each row, the token after its position
    features: torch.Tensor  # [rows, features * target_hidden_size] of the target
    first: int  # position of the sequence's first row


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Nodes of a tree of drafts: those that run now, after those that ran in the steps before."""

    sequence: Sequence
    tree: TokenTree
    ran: int  # nodes that ran
    states: torch.Tensor  # [nodes that run, hidden_size]: what came out of each one's parent
    first: int  # position of the sequence's first row


class HeadEngine:
    """A head with its KV pool. One thread owns it."""

    def __init__(self, runner: HeadRunner, config: EngineConfig) -> None:
        """Args:
        runner: with `pool_slots(config)` slots.
        config: type, device, pool; whether rows must not depend on the batch.
        """
        self._runner = runner
        size = config.block_size
        self._pool = BlockPool(config.pool_tokens // size, size, prefix_cache=False)
        self._least_rows = bucket(1)
        self._least_queries = 1
        if config.batch_invariance != "off":
            dtype = getattr(torch, config.dtype)
            with torch.inference_mode():
                self._least_rows = bucket(calibrate_projections(runner, dtype, config.device))
                self._least_queries = calibrate_attention(runner, dtype, config.device)

    @property
    def pool(self) -> PoolUsage:
        """Blocks in use."""
        return PoolUsage(self._pool.total, self._pool.used, self._pool.cached)

    @property
    def pool_tokens(self) -> int:
        """Rows that fit the pool."""
        return self._pool.total * self._pool.block_size

    def open(self) -> Sequence:
        """An empty sequence."""
        return Sequence(self._pool, ())

    def reserve(self, sequence: Sequence, count: int) -> bool:
        """Make room for `count` rows past those held. False, and nothing changed, if the pool is full."""
        return sequence.grow(count) is not None  # nothing is shared, so no block has to be copied

    def step(self, items: SequenceOf[TrueRows | DraftRows]) -> list[torch.Tensor]:
        """One packed forward over items of different sequences. Room must have been reserved.

        Returns:
            Of each item the states of its draft rows, or of its last true row: [rows, hidden_size].

        Raises:
            InternalError: there is no room.
        """
        with torch.inference_mode():
            parts = [_part(item) for item in items]
            for part in parts:
                if part.sequence.kv_len + len(part.tree) > part.sequence.capacity:
                    raise InternalError("rows of a head do not fit what was reserved")
            plan = make_plan(parts, least_rows=self._least_rows, least_queries=self._least_queries)
            states = self._runner.forward(plan, _positions(items, parts, plan), self._states(items, plan))
            wanted = []
            stop = 0
            for item, part in zip(items, parts, strict=True):
                stop += len(part.nodes)
                start = stop - 1 if isinstance(item, TrueRows) else stop - len(part.nodes)
                wanted.append(states[start:stop].clone())
        for item in items:
            if isinstance(item, TrueRows):
                item.sequence.append(item.token_ids)
        return wanted

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Of the tokens after the rows that gave `states` [R, hidden_size]: float32 [R, columns], writable.

        A row that is not finite, whatever was fed to it, counts as one that knows nothing: it is all zeros.
        """
        with torch.inference_mode():
            count = len(states)
            scores = self._runner.logits(states).float()
            scores.masked_fill_(~torch.isfinite(scores).all(1, keepdim=True), 0.0)
        # Made outside of inference mode: callers change logits in place.
        logits = torch.empty(count, scores.shape[1], dtype=torch.float32)
        return logits.copy_(scores)

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back. Idempotent."""
        sequence.close()

    def _states(self, items: SequenceOf[TrueRows | DraftRows], plan: StepPlan) -> torch.Tensor:
        true = [item.features for item in items if isinstance(item, TrueRows)]
        conditioned = iter(self._conditioned(true))
        states = [next(conditioned) if isinstance(item, TrueRows) else item.states for item in items]
        packed = torch.cat(states)
        return torch.cat((packed, packed[:1].expand(len(plan.token_ids) - len(packed), -1)))

    def _conditioned(self, features: list[torch.Tensor]) -> SequenceOf[torch.Tensor]:
        if not features:
            return ()
        return torch.split(self._runner.condition(torch.cat(features)), [len(own) for own in features])


def pool_slots(config: EngineConfig) -> int:
    """Token slots of the pool: block 0, which stands for padding, comes on top."""
    return (config.pool_tokens // config.block_size + 1) * config.block_size


def _part(item: TrueRows | DraftRows) -> PackedPart:
    if isinstance(item, TrueRows):
        return PackedPart(item.sequence, TokenTree.chain(item.token_ids), range(len(item.token_ids)))
    return PackedPart(item.sequence, item.tree, range(item.ran, len(item.tree)))


def _positions(
    items: SequenceOf[TrueRows | DraftRows], parts: SequenceOf[PackedPart], plan: StepPlan
) -> torch.Tensor:
    """Where the rows stand in the text: the plan's positions count from each sequence's first row."""
    counts = [len(part.nodes) for part in parts]
    shifts = [item.first for item, count in zip(items, counts, strict=True) for _ in range(count)]
    return plan.positions + torch.tensor(shifts + shifts[:1] * (len(plan.positions) - len(shifts)))
