"""Drafters for the tests of acceptance: trees, chosen tokens, and mixtures."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.acceptance import draw
from outrider.core.trees import SparseProbs, TokenTree
from tests.unit.core.acceptance.enumeration import World
from tests.unit.core.acceptance.worlds import VOCABULARY, Drafter, Law, Model, Tokens, dense, drafts, sparse


def without(law: Law, taken: Sequence[int]) -> Law:
    """What is left to draw from when these were drawn; zeros if nothing is."""
    left = [0.0 if token in taken else prob for token, prob in enumerate(law)]
    total = sum(left)
    return tuple(prob / total if total else 0.0 for prob in left)


def sampled_tree(widths: Sequence[int], model: Model = drafts, *, tell_raw: bool = False) -> Drafter:
    """`widths[d]` siblings under each node of depth d, drawn one after another without replacement.

    `tell_raw`: send q as it was before the elder siblings were taken out. That is wrong.
    """

    def drafter(context: Tokens, world: World) -> TokenTree:
        ids: list[int] = []
        parents: list[int] = []
        laws: list[SparseProbs] = []
        level: list[tuple[int, Tokens]] = [(-1, ())]
        for width in widths:
            below = []
            for parent, path in level:
                taken: list[int] = []
                for rank in range(width):
                    raw = model(context + path)
                    law = without(raw, taken)
                    if not any(law):
                        break
                    token = draw(dense(law), world.number("draft", len(context), path, rank))  # type: ignore[arg-type]
                    taken.append(token)
                    ids.append(token)
                    parents.append(parent)
                    laws.append(sparse(raw if tell_raw else law))
                    below.append((len(ids) - 1, (*path, token)))
            level = below
        return TokenTree(tuple(ids), tuple(parents), tuple(laws))

    return drafter


def likeliest(context: Tokens, world: World) -> TokenTree:
    """Two tokens chosen, not drawn: the likeliest of each law."""
    first = best(drafts(context))
    return TokenTree.chain((first, best(drafts((*context, first)))))


def likeliest_tree(context: Tokens, world: World) -> TokenTree:
    """The two likeliest tokens, and under the first one the likeliest after it."""
    law = drafts(context)
    first = best(law)
    second = best(without(law, [first]) if max(law) < 1.0 else tuple(-float(i == first) for i in range(3)))
    return TokenTree((first, second, best(drafts((*context, first)))), (-1, -1, 0))


def repeating(context: Tokens, world: World) -> TokenTree:
    """As prompt lookup does: the last token again, whatever the target thinks; nothing to begin with."""
    return TokenTree.chain((context[-1], (context[-1] + 1) % VOCABULARY)) if context else TokenTree()


def mixed(context: Tokens, world: World) -> TokenTree:
    """One sibling chosen (all its law on it), the next one drawn from what that leaves, one below drawn."""
    chosen = len(context) % VOCABULARY
    law = without((0.5, 0.3, 0.2), [chosen])
    drawn = draw(dense(law), world.number("draft", len(context), 0))  # type: ignore[arg-type]
    below = drafts((*context, drawn))
    last = draw(dense(below), world.number("draft", len(context), 1))  # type: ignore[arg-type]
    laws = (SparseProbs((chosen,), (1.0,)), sparse(law), sparse(below))
    return TokenTree((chosen, drawn, last), (-1, -1, 1), laws)


def clipped(drafter: Drafter, nodes: int) -> Drafter:
    """The first nodes only, as the verifier cuts a proposal that is too long."""
    return lambda context, world: drafter(context, world).truncated(nodes)


def best(law: Law) -> int:
    return max(range(len(law)), key=lambda token: law[token])
