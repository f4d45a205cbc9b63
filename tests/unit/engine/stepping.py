"""Helpers that drive an engine the way verifier and drafters do."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core.trees import TokenTree
from outrider.engine.api import SequenceHandle, StepItem
from outrider.engine.engine import Engine


def run(engine: Engine, sequence: SequenceHandle, tree: TokenTree, path: Sequence[int]) -> torch.Tensor:
    """One step of one sequence; commits `path` and returns the logits of all nodes."""
    assert engine.reserve(sequence, len(tree))
    logits = engine.step([StepItem(sequence, tree)]).logits
    engine.commit(sequence, path)
    return logits


def run_chain(engine: Engine, sequence: SequenceHandle, token_ids: Sequence[int]) -> torch.Tensor:
    """Commit tokens and return their logits."""
    return run(engine, sequence, TokenTree.chain(token_ids), range(len(token_ids)))


def logits_of(engine: Engine, token_ids: Sequence[int], *, chunk: int = 1) -> torch.Tensor:
    """Logits of a whole sequence that runs alone, in chunks."""
    sequence = engine.open(token_ids)
    done = sequence.kv_len
    assert done == 0, "wanted a run without prefix reuse"
    parts = [
        run_chain(engine, sequence, token_ids[start : start + chunk])
        for start in range(0, len(token_ids), chunk)
    ]
    engine.release(sequence)
    return torch.cat(parts)
