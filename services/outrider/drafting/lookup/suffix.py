"""Suffix decoding: trees out of all that was served, as deep as the match is long.

Source: Oliaro et al., "SuffixDecoding", arXiv 2411.04975, and its implementation in ArcticInference. There a
suffix tree counts what followed; here hash chains lead to recent occurrences, which vote. That needs less
memory, forgets the oldest text exactly, and favours what is recent. As there, a running session's own text
and text served before are looked at, and unlikely drafts are not proposed.
"""

from __future__ import annotations

from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.lookup.method import TextLookup
from outrider.drafting.lookup.shared_text import SharedText

GRAMS = (1, 2, 4, 8)
"""Lengths of n-grams that lead to occurrences. The longest leads to few, which are then compared on."""
SHARED_GRAMS = GRAMS[1:]
"""Of served text: that a single token occurred in it says nothing."""
FLOOR = 0.05
"""Draft tokens that are less likely to be reached are not proposed."""


def suffix_decoding(*, max_tokens: int, share: bool, shape: TreeShape, tree_nodes: int) -> TextLookup:
    """Matches the last tokens, as many as agree, against all earlier ones and served text.

    Args:
        max_tokens: of running sessions that are indexed; as many of served text.
        share: keep text that was served, for later sessions of the same tenant.
        shape: of trees.
        tree_nodes: most nodes of a tree.
    """
    return TextLookup(
        "suffix",
        grams=GRAMS,
        max_tokens=max_tokens,
        shape=shape,
        tree_nodes=tree_nodes,
        floor=FLOOR,
        shared=SharedText(SHARED_GRAMS, max_tokens) if share else None,
    )
