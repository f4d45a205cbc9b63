"""What a draft model must propose: coupled picks from the plain transformers forward, nothing cached."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import transformers

from outrider.core.params import SamplingParams
from outrider.core.sampling import coupled_picks


class Oracle:
    """Proposals as a function of tokens, parameters and length."""

    def __init__(self, folder: Path, vocabulary: torch.Tensor | None = None) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.vocabulary = vocabulary
        self._next = cache(self._compute)

    def propose(self, tokens: tuple[int, ...], params: SamplingParams, length: int) -> tuple[int, ...]:
        drafted: tuple[int, ...] = ()
        for _ in range(length):
            drafted += (self._next(tokens + drafted, params),)
        return drafted

    def _compute(self, tokens: tuple[int, ...], params: SamplingParams) -> int:
        with torch.no_grad():
            logits = self.model(torch.tensor([tokens])).logits[0, -1:].float()
        if self.vocabulary is not None:
            logits = logits[:, self.vocabulary]
        return int(coupled_picks(logits, [(params, len(tokens))], self.vocabulary)[0])
