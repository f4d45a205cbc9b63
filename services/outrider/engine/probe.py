"""The start-up probe: does the loaded model give a token the same bits in whatever company it runs?

Runs the same tokens one at a time, in two chunkings, in a batch with others, as nodes of a tree with
wrong siblings, and as the head of a prefill chunk of full length, and compares their logits and the
KV left in the pool bit for bit. The end of a longer text is run one at a time and in one chunk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from outrider.core.trees import TokenTree
from outrider.engine.api import EngineApi, SequenceHandle, StepItem
from outrider.engine.sequence import KV_MULTIPLE

_PROMPT = 44
_TAIL = 6
_OTHERS = (40, 3, 1)  # lengths of co-scheduled prefills

Stored = Callable[[SequenceHandle], torch.Tensor]


def is_batch_invariant(engine: EngineApi, stored: Stored, *, chunk: int) -> bool:
    """True if every way to run the probe's tokens gave the same bits.

    Args:
        engine: with an empty pool whose prefix cache is off.
        stored: the KV of a sequence's committed tokens, all layers, as one tensor.
        chunk: tokens of a full prefill chunk; one is tried where context and pool have room for it.
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
    if not all(torch.equal(logits, other[0]) and torch.equal(kept, other[1]) for other in runs):
        return False
    head = -(-KV_MULTIPLE // chunk) * chunk
    filler = [generator.randrange(vocab) for _ in range(head - _PROMPT)]
    return _Probe(engine, stored, tokens + filler).agrees_past_one_length(chunk, kept)


@dataclass(frozen=True, slots=True)
class _Probe:
    engine: EngineApi
    stored: Stored
    tokens: list[int]

    def run(self, chunks: list[int], others: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the tail and all KV, with the tokens run in these chunks, each next to `others`."""
        sequence = self.engine.open(self.tokens)
        logits = [self._take(sequence, count, others) for count in chunks]
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

    def agrees_past_one_length(self, chunk: int, kept: torch.Tensor) -> bool:
        """Run all but the tail in chunks of this size, and the end in two ways; True if there is no room.

        `kept` is what the first _PROMPT + _TAIL tokens left in the pool when they ran by themselves.
        """
        size = len(self.tokens)
        if size > self.engine.info.context_length:
            return True
        sequence = self.engine.open(self.tokens)
        if not self.engine.reserve(sequence, size):
            self.engine.release(sequence)
            return True
        for _ in range(0, size - _TAIL, chunk):
            self._take(sequence, chunk)
        singly = torch.cat([self._take(sequence, 1) for _ in range(_TAIL)]), self.stored(sequence)
        self.engine.rollback(sequence, size - _TAIL - _PROMPT)
        together = self._take(sequence, _PROMPT + _TAIL)[_PROMPT:], self.stored(sequence)
        self.engine.rollback(sequence, _PROMPT + _TAIL)
        _, begin = self._finish(sequence, together[0])
        pairs = (*zip(singly, together, strict=True), (kept, begin))
        return all(torch.equal(one, other) for one, other in pairs)

    def _take(self, sequence: SequenceHandle, count: int, others: Sequence[list[int]] = ()) -> torch.Tensor:
        """Run and keep the next tokens next to `others`; their logits, none if all are before the tail."""
        tree = TokenTree.chain(self.tokens[sequence.kv_len : sequence.kv_len + count])
        logits = self._step(sequence, tree, others)
        self.engine.commit(sequence, range(count))
        return logits

    def _step(self, sequence: SequenceHandle, tree: TokenTree, others: Sequence[list[int]]) -> torch.Tensor:
        items = []
        companions = [self.engine.open(other) for other in others]
        for companion, other in zip(companions, others, strict=True):
            self.engine.reserve(companion, len(other))
            items.append(StepItem(companion, TokenTree.chain(other), logits="last"))
        self.engine.reserve(sequence, len(tree))
        head = len(self.tokens) - _TAIL
        wanted: Literal["all", "none"] = "none" if sequence.kv_len + len(tree) <= head else "all"
        items.append(StepItem(sequence, tree, logits=wanted))
        output = self.engine.step(items)
        for companion in companions:
            self.engine.release(companion)
        return output.logits[output.rows[-1]]

    def _finish(self, sequence: SequenceHandle, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = self.stored(sequence)
        self.engine.release(sequence)
        return logits, kept
