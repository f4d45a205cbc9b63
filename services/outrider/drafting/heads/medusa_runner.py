"""Runs Medusa heads over the last hidden states of many sessions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.drafting.heads.medusa_weights import MedusaWeights
from outrider.drafting.heads.weights import LinearWeights
from outrider.engine.elementwise import apply_elementwise
from outrider.engine.rows import PolicyTable, Projection


@dataclass(frozen=True, slots=True)
class HeadRow:
    """What one head is to say of one hidden state."""

    state: int  # row of the hidden states
    head: int


class MedusaRunner:
    """Medusa heads, ready to run. One thread owns them."""

    def __init__(
        self, weights: MedusaWeights, outputs: Sequence[torch.Tensor], *, dtype: torch.dtype, device: str
    ) -> None:
        """Args:
        weights: of the heads.
        outputs: [columns, hidden_size] of each head, or one for all of them.
        dtype: of weights and activations.
        device: torch device.
        """
        self._like = like = torch.empty(0, dtype=dtype, device=device)
        self._hidden = weights.hidden_size
        self._count = len(weights.blocks)
        depth = len(weights.blocks[0])
        # All first blocks see the same rows, so they are one product.
        self._first = _projection("first", like, *[own[0] for own in weights.blocks]) if depth else None
        self._further = [[_projection("block", like, block) for block in own[1:]] for own in weights.blocks]
        self._outputs = [_projection("output", like, LinearWeights(own)) for own in outputs]

    @property
    def heads(self) -> int:
        """How many tokens they foretell."""
        return self._count

    @property
    def columns(self) -> int:
        """Width of the logits."""
        return self._outputs[0].out_features

    def calibrate(self) -> None:
        """See to it that a row's logits do not depend on how many rows there are."""
        known: PolicyTable = {}
        further = [block for own in self._further for block in own]
        with torch.inference_mode():
            for projection in (*([self._first] if self._first else []), *further, *self._outputs):
                projection.calibrate(known, self._like.dtype, str(self._like.device))

    def logits(self, states: torch.Tensor, rows: Sequence[HeadRow]) -> torch.Tensor:
        """What heads say of hidden states.

        A row that is not finite, whatever was fed to it, counts as one that knows nothing: it is all zeros.

        Args:
            states: [S, hidden_size], after the target's final norm.
            rows: R pairs of state and head.

        Returns:
            float32 [R, columns] on the CPU.
        """
        with torch.inference_mode():
            scores = self._scores(states.to(self._like), rows).float()
            scores.masked_fill_(~torch.isfinite(scores).all(1, keepdim=True), 0.0)
        # Made outside of inference mode: callers change logits in place.
        return torch.empty(scores.shape, dtype=torch.float32).copy_(scores)

    def _scores(self, states: torch.Tensor, rows: Sequence[HeadRow]) -> torch.Tensor:
        which = torch.tensor([row.state for row in rows], device=states.device)
        if self._first is None:
            hidden = states[which]
        else:
            steps = apply_elementwise(F.silu, self._first(states)).view(len(states), self._count, -1)
            heads = torch.tensor([row.head for row in rows], device=states.device)
            hidden = states[which] + steps[which, heads]
        if len(self._outputs) == 1 and not self._further[0]:
            shared: torch.Tensor = self._outputs[0](hidden)
            return shared
        scores = hidden.new_empty(len(rows), self.columns)
        for head in range(self._count):
            own = [index for index, row in enumerate(rows) if row.head == head]
            if own:
                index = torch.tensor(own, device=states.device)
                scores[index] = self._of_head(head, hidden[index])
        return scores

    def _of_head(self, head: int, hidden: torch.Tensor) -> torch.Tensor:
        """The rest of a head, after its first block."""
        for block in self._further[head]:
            hidden = hidden + apply_elementwise(F.silu, block(hidden))
        scores: torch.Tensor = self._outputs[head if len(self._outputs) > 1 else 0](hidden)
        return scores


def _projection(name: str, like: torch.Tensor, *parts: LinearWeights) -> Projection:
    weight = torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight
    bias: torch.Tensor | None = None
    if any(part.bias is not None for part in parts):
        zeros = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in parts]
        bias = torch.cat(zeros).detach().to(like)
    return Projection(weight.detach().to(like), bias, name)
