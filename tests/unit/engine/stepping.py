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


def logits_of(engine: Engine, token_ids: Sequence[int], *, chunk: int, singles: int = 0) -> torch.Tensor:
    """Logits of a whole sequence that runs alone: in chunks, the last `singles` tokens one by one."""
    sequence = engine.open(token_ids)
    done = sequence.kv_len
    assert done == 0, "wanted a run without prefix reuse"
    parts = []
    while done < len(token_ids):
        many = len(token_ids) - singles - done
        end = done + (min(chunk, many) if many > 0 else 1)
        parts.append(run_chain(engine, sequence, token_ids[done:end]))
        done = end
    engine.release(sequence)
    return torch.cat(parts)
