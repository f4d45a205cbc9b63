"""Grammars of sessions: what each allows next."""

from __future__ import annotations

import torch

from outrider.core.trees import TokenTree
from outrider.verifying.session import Session


def node_masks(session: Session, tree: TokenTree) -> list[torch.Tensor | None]:
    """What may follow the session's tokens, and what each node of the tree.

    Returns:
        For the root and for each node: int32 [ceil(V / 32)], or None if anything may.
    """
    return [None] * (len(tree) + 1)
