"""What a Medusa checkpoint holds, whatever its file layout: what the loader gives and the runner takes.

Each head goes from the target's last hidden state through residual blocks, x + silu(W x + b), and an output
head (Cai et al., arXiv 2401.10774). The k-th foretells the token k places after the one that the target's own
output head gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.drafting.heads.weights import LinearWeights


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """A checkpoint as it was loaded. What it lacks is the target's."""

    hidden_size: int
    vocab_size: int  # of the target, as the checkpoint says; 0: it does not
    blocks: tuple[tuple[LinearWeights, ...], ...]  # of each head, [hidden_size, hidden_size]; as many in each
    outputs: tuple[torch.Tensor, ...] = ()  # [columns, hidden_size] of each head; one: of all; none: target's
    draft_ids: torch.Tensor | None = None  # int64 [columns] ids of the columns, ascending; None: the same
    base_model: str = ""  # the target's name, as the checkpoint says
