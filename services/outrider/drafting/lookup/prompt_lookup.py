"""Prompt lookup: what followed the last few tokens before will follow them again.

Source: Saxena, "Prompt Lookup Decoding", 2023. Needs no model. Pays where the output repeats the
prompt or itself: translation, summaries, retrieval, edits of code.

The source copies one occurrence. Here all recent ones vote (see `voting`), for a chain or a tree.
"""

from __future__ import annotations

from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.lookup.method import TextLookup

_CHAIN = TreeShape()


def prompt_lookup(
    *,
    ngram_min: int,
    ngram_max: int,
    max_tokens: int,
    shape: TreeShape = _CHAIN,
    tree_nodes: int = 16,
) -> TextLookup:
    """Matches the last `ngram_max` down to `ngram_min` tokens against all earlier ones of the session.

    Args:
        ngram_min: shortest match.
        ngram_max: longest n-gram that is looked for; longer matches count for more.
        max_tokens: indexed over all sessions.
        shape: of trees; a chain by default.
        tree_nodes: most nodes of a tree.
    """
    grams = range(ngram_min, ngram_max + 1)
    return TextLookup("prompt_lookup", grams=grams, max_tokens=max_tokens, shape=shape, tree_nodes=tree_nodes)
