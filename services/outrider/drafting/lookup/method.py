"""Drafting from text: what followed the same tokens before. Needs no model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.core.models import ModelInfo
from outrider.core.params import Acceptance
from outrider.core.trees import TokenTree
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.lookup.continuation import LONGEST_MATCH
from outrider.drafting.lookup.own_text import OwnText
from outrider.drafting.lookup.shared_text import SharedText
from outrider.drafting.lookup.voting import grow
from outrider.drafting.method import StepReport
from outrider.drafting.session import DraftSession
from outrider.wire.messages import FeatureBlock

TOKENS_PER_STEP = 1024
"""Tokens indexed in one step: about 2 ms."""
SHARED_AT_ONCE = 128
"""Tokens of a session that are entered into the shared text together, about; less than 1 ms."""
MOST_PIECES = 256
"""Pieces of text that wait to be entered; the oldest is given up. Many wait when a verifier goes away."""


class _Piece(NamedTuple):
    """Text for `SharedText.add`."""

    tenant: str
    context: list[int]
    served: list[int]


@dataclass(slots=True)
class _Lookup:
    text: OwnText
    shared: int  # tokens that are in the shared text, or shall not be
    looked_up: bool = False
    tree: TokenTree = field(default_factory=TokenTree)


class TextLookup:
    """Matches the last tokens of a session against its earlier ones, and against others' if asked to."""

    def __init__(
        self,
        name: str,
        *,
        grams: Sequence[int],
        max_tokens: int,
        shape: TreeShape,
        tree_nodes: int,
        floor: float = 0.0,
        shared: SharedText | None = None,
    ) -> None:
        """Args:
        name: of the method, as in the configuration.
        grams: lengths of n-grams that are indexed.
        max_tokens: tokens of running sessions that are indexed, over all of them.
        shape: of trees.
        tree_nodes: most nodes of a tree.
        floor: draft tokens that are less likely to be reached are not proposed.
        shared: text of sessions that were served before; None: each session has its own only.
        """
        self._name = name
        self._grams = tuple(grams)
        self._max_tokens = max_tokens
        self._shape = shape
        self._tree_nodes = tree_nodes
        self._floor = floor
        self._shared = shared
        self._tokens = 0
        self._lookups: dict[DraftSession, _Lookup] = {}
        self._pieces: deque[_Piece] = deque(maxlen=MOST_PIECES)

    @property
    def name(self) -> str:
        return self._name

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(model_name=self._name)

    @property
    def features(self) -> frozenset[str]:
        return frozenset()

    @property
    def last_feature_only(self) -> bool:
        return False

    @property
    def runs_ahead(self) -> bool:
        return False

    @property
    def usage(self) -> float:
        return self._tokens / self._max_tokens

    def open(self, session: DraftSession, features: Sequence[FeatureBlock]) -> None:
        # What was generated before it came here was shared where it was served.
        self._lookups[session] = _Lookup(OwnText(self._grams), len(session.tokens))

    def advance(self, session: DraftSession, same: int, features: Sequence[FeatureBlock]) -> None:
        # A new end may match better elsewhere, so what is left of the last proposal is not kept.
        self._lookups[session].looked_up = False

    def step(self, sessions: Sequence[DraftSession]) -> StepReport:
        self._enter_pieces()
        progressed = 0
        starved = []
        budget = TOKENS_PER_STEP
        for session in sorted(sessions, key=self._pending):  # a long prompt holds up nobody
            lookup = self._lookups[session]
            text = lookup.text
            chunk = min(self._pending(session), budget)
            if self._tokens + chunk > self._max_tokens:
                starved.append(session)
                continue
            text.extend(session.tokens, text.indexed + chunk)
            self._tokens += chunk
            budget -= chunk
            progressed += 1
            if text.indexed == len(session.tokens):
                lookup.tree = self._draft(session, text)
                lookup.looked_up = True
                if len(session.tokens) - lookup.shared >= SHARED_AT_ONCE:
                    self._share(session, lookup)
        return StepReport(progressed, starved)

    def finished(self, session: DraftSession) -> bool:
        return self._lookups[session].looked_up

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        tree = self._lookups[session].tree
        return tree.pruned(length).truncated(nodes)

    def close(self, session: DraftSession) -> None:
        lookup = self._lookups.pop(session, None)
        if lookup is not None:
            self._tokens -= lookup.text.indexed
            self._share(session, lookup)

    def _pending(self, session: DraftSession) -> int:
        return len(session.tokens) - self._lookups[session].text.indexed

    def _draft(self, session: DraftSession, text: OwnText) -> TokenTree:
        depth = session.goal
        if depth == 0:
            return TokenTree()
        nodes = min(session.nodes, max(self._tree_nodes, depth))
        found = text.find(session.tokens, depth)
        # By the other rules a draft must not hang together with the random numbers that judge it. Another
        # session's text may come from the same seed, and so from the same numbers.
        if self._shared is not None and session.acceptance is Acceptance.COUPLED:
            found += self._shared.find(session.tenant, session.tokens[-LONGEST_MATCH:], depth)
        shape = self._shape.within(depth, nodes)
        return grow(found, shape, depth=depth, nodes=nodes, floor=self._floor)

    def _share(self, session: DraftSession, lookup: _Lookup) -> None:
        tokens, start = session.tokens, max(lookup.shared, len(session.tokens) - 2 * SHARED_AT_ONCE)
        if self._shared is None or start == len(tokens):
            return
        context = tokens[max(0, start - LONGEST_MATCH) : start]
        self._pieces.append(_Piece(session.tenant, context, tokens[start:]))
        lookup.shared = len(tokens)

    def _enter_pieces(self) -> None:
        """As many as fit a step: sessions that end all at once must not hold up those that go on."""
        entered = 0
        while self._shared is not None and self._pieces and entered < SHARED_AT_ONCE:
            piece = self._pieces.popleft()
            self._shared.add(piece.tenant, piece.context, piece.served)
            entered += len(piece.served)
