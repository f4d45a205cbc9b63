"""What the engine offers to verifier and drafters. Torch and core types only.

A sequence holds KV for its first `kv_len` tokens. `step` runs, for each item, a tree of tokens
on top of that; `commit` then keeps one path of the tree, and everything else is forgotten
(rolled back) by not being kept. The engine never decides what is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch

from outrider.core.models import ModelInfo
from outrider.core.trees import TokenTree


@runtime_checkable
class SequenceHandle(Protocol):
    """One sequence in the KV pool. Opaque but for these."""

    @property
    def kv_len(self) -> int:
        """Committed tokens whose KV is held."""

    @property
    def token_ids(self) -> Sequence[int]:
        """These tokens."""

    @property
    def cached_len(self) -> int:
        """How many of them came from the prefix cache when the sequence was opened."""


@dataclass(frozen=True, slots=True)
class StepItem:
    """One sequence's part of a step.

    A prefill chunk is a chain of prompt tokens. A round is the last committed token as the
    single root with the draft tokens below it (`TokenTree.under`).

    A tree may grow over several steps, with no commit in between: its first `ran` nodes are those that the
    last step left in place. Output is for the nodes that run only.
    """

    sequence: SequenceHandle
    tree: TokenTree
    logits: Literal["all", "last", "none"] = "all"  # which of the nodes that run have logits
    ran: int = 0  # nodes at the start of the tree that the sequence's last step ran: not run again


@dataclass(slots=True)
class StepOutput:
    """What a step computed."""

    logits: torch.Tensor  # float32 [rows, vocab_size], rows of all items in order
    rows: list[slice]  # rows of `logits` of each item


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Blocks of the KV pool."""

    total: int
    used: int  # held by sequences
    cached: int  # held by the prefix cache alone: free when needed

    @property
    def ratio(self) -> float:
        """Share in use, 0 to 1."""
        return self.used / self.total if self.total else 0.0


class EngineApi(Protocol):
    """One model with its KV pool. Not thread-safe: one thread owns it."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def batch_invariance(self) -> str:
        """ "exact", "exact_slow" or "inexact": what the start-up probe found."""

    @property
    def pool(self) -> PoolUsage: ...

    @property
    def features(self) -> frozenset[str]:
        """Names that `keep_features` may be given."""

    def open(self, token_ids: Sequence[int], *, reuse: int | None = None, salt: str = "") -> SequenceHandle:
        """Start a sequence that will hold `token_ids`; KV of a shared prefix is reused.

        At least the last token is left to run, so that its logits can be had. `reuse` is the most tokens
        whose KV may come from elsewhere, if logits of earlier ones are wanted too. KV is shared with
        sequences of the same `salt` only.
        """

    def reserve(self, sequence: SequenceHandle, count: int) -> bool:
        """Make room for `count` more tokens past kv_len. False, and nothing changed, if the pool is full."""

    def step(self, items: Sequence[StepItem]) -> StepOutput:
        """One packed forward over all items. Room must have been reserved."""

    def keep_features(self, names: Collection[str]) -> None:
        """Keep these hidden states beside the KV from now on, and no others.

        A feature that is new stands in no slot written before: it reads as zeros there. Cached prefixes are
        forgotten, so new sequences have it from their first token on.

        Raises:
            InternalError: a name that is not offered.
            OverloadedError: there is no memory for them; nothing changed.
        """

    def features_of(
        self, sequence: SequenceHandle, name: str, start: int, stop: int, nodes: Sequence[int] = ()
    ) -> torch.Tensor:
        """A kept feature of the tokens `start` to `stop`: bf16 [stop - start, hidden_size], on the CPU.

        Positions past kv_len are those of `nodes`, a path of the last step's tree that is not committed yet.
        """

    def commit(self, sequence: SequenceHandle, nodes: Sequence[int]) -> None:
        """Keep the KV of these nodes of the sequence's last step: a path from a top node down."""

    def rollback(self, sequence: SequenceHandle, kv_len: int) -> None:
        """Forget committed tokens past `kv_len`."""

    def release(self, sequence: SequenceHandle) -> None:
        """Give all blocks back. Idempotent."""
