"""Grammars of sessions: what each allows after its tokens and after each of its draft tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from outrider.core.errors import InternalError
from outrider.core.trees import TokenTree
from outrider.structured import GrammarMatcher
from outrider.verifying.session import Session


def node_masks(session: Session, tree: TokenTree) -> list[torch.Tensor | None]:
    """What may follow the session's tokens, and what each node of the tree.

    First the session's matcher is taken along with its tokens: those of the last round or, if the session
    goes on from the store, all of them. Then down each branch and back.

    Returns:
        For the root and for each node: int32 [ceil(V / 32)], or None if anything may follow. None too at a
        node that the grammar forbids and at those below it: the pick above is masked, so no walk comes there.

    Raises:
        InvalidRequestError: the grammar has become too complex, here or at a draft token.
        InternalError: the session's tokens do not fit its grammar.
    """
    masks: list[torch.Tensor | None] = [None] * (len(tree) + 1)
    matcher = session.grammar
    if matcher is None:
        return masks
    _keep_up(matcher, session)
    block = np.empty((len(tree) + 1, matcher.words), dtype=np.int32)
    rows = torch.from_numpy(block).unbind()
    for node in _allowed_nodes(matcher, tree):
        matcher.fill_mask(block[node + 1])
        masks[node + 1] = rows[node + 1]
    return masks


def _keep_up(matcher: GrammarMatcher, session: Session) -> None:
    for token_id in session.tokens[len(session.record.prompt) + len(matcher) :]:
        if not matcher.accept(token_id):
            place = len(matcher)
            raise InternalError(f"token {place} of session {session.session_id} does not fit its grammar")


def _allowed_nodes(matcher: GrammarMatcher, tree: TokenTree) -> Iterator[int]:
    """The root (-1) and the nodes that the grammar allows; the matcher stands at each while it is given."""
    yield -1
    children = tree.children()
    path: list[int] = []  # nodes that the matcher has accepted
    rest = list(children.get(-1, {}).values())
    try:
        while rest:
            node = rest.pop()
            while path and path[-1] != tree.parents[node]:
                path.pop()
                matcher.rollback(1)
            if matcher.accept(tree.token_ids[node]):
                path.append(node)
                yield node
                rest += children.get(node, {}).values()
    finally:
        matcher.rollback(len(path))
