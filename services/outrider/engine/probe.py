"""The start-up probe: does the loaded model give a token the same bits in whatever company it runs?

Runs the same tokens one at a time, in two chunkings, in a batch with others, and as nodes of a
tree with wrong siblings, and compares their logits and the KV left in the pool bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from outrider.core.trees import TokenTree
from outrider.engine.api import EngineApi, SequenceHandle, StepItem

_PROMPT = 44
_TAIL = 6
_OTHERS = (40, 3, 1)  # lengths of co-scheduled prefills

Stored = Callable[[SequenceHandle], torch.Tensor]


def is_batch_invariant(engine: EngineApi, stored: Stored) -> bool:
    """True if every way to run the probe's tokens gave the same bits.

    Args:
        engine: with an empty pool whose prefix cache is off.
        stored: the KV of a sequence's committed tokens, all layers, as one tensor.
    """
    generator = random.Random(0)
    vocab = engine.info.vocab_size
    tokens = [generator.randrange(vocab) for _ in range(_PROMPT + _TAIL)]
    others = [[generator.randrange(vocab) for _ in range(length)] for length in _OTHERS]
    probe = _Probe(engine, stored, tokens)
    logits, kept = probe.run([_PROMPT] + [1] * _TAIL, [])
    runs = (
        probe.run([7, _PROMPT - 7, 1, _TAIL - 1], []),
        probe.run([3, _PROMPT - 3, 2, _TAIL - 2], others),
        probe.run_tree(others),
    )
    return all(torch.equal(logits, other[0]) and torch.equal(kept, other[1]) for other in runs)


@dataclass(frozen=True, slots=True)
class _Probe:
    engine: EngineApi
    stored: Stored
    tokens: list[int]

    def run(self, chunks: list[int], others: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the tail and all KV, with the tokens run in these chunks, each next to `others`."""
        sequence = self.engine.open(self.tokens)
        logits = []
        start = 0
        for count in chunks:
            tree = TokenTree.chain(self.tokens[start : start + count])
            output = self._step(sequence, tree, others)
            if start >= _PROMPT:
                logits.append(output)
            self.engine.commit(sequence, range(count))
            start += count
        return self._finish(sequence, torch.cat(logits))

    def run_tree(self, others: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """The tail as a path of a tree where each node has a wrong sibling before it."""
        sequence = self.engine.open(self.tokens)
        self._step(sequence, TokenTree.chain(self.tokens[:_PROMPT]), [])
        self.engine.commit(sequence, range(_PROMPT))
        ids: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        for token in self.tokens[_PROMPT:]:
            parent = path[-1] if path else -1
            ids += [(token + 1) % self.engine.info.vocab_size, token]
            parents += [parent, parent]
            path.append(len(ids) - 1)
        logits = self._step(sequence, TokenTree(tuple(ids), tuple(parents)), others)[path]
        self.engine.commit(sequence, path)
        return self._finish(sequence, logits)

    def _step(self, sequence: SequenceHandle, tree: TokenTree, others: list[list[int]]) -> torch.Tensor:
        items = []
        companions = [self.engine.open(other) for other in others]
        for companion, other in zip(companions, others, strict=True):
            self.engine.reserve(companion, len(other))
            items.append(StepItem(companion, TokenTree.chain(other), logits="last"))
        self.engine.reserve(sequence, len(tree))
        wanted: Literal["all", "none"] = "none" if sequence.kv_len + len(tree) <= _PROMPT else "all"
        items.append(StepItem(sequence, tree, logits=wanted))
        output = self.engine.step(items)
        for companion in companions:
            self.engine.release(companion)
        return output.logits[output.rows[-1]]

    def _finish(self, sequence: SequenceHandle, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = self.stored(sequence)
        self.engine.release(sequence)
        return logits, kept
