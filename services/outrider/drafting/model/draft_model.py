"""A smaller model of the same tokenizer drafts, one token or one level of a tree a step for all sessions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from outrider.core.logit_table import Columns
from outrider.core.models import ModelInfo
from outrider.core.trees import TokenTree
from outrider.drafting.growth.planting import plant, wants_tree
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.growth.tree import ROOT, GrowingTree
from outrider.drafting.method import StepReport
from outrider.drafting.picking.drawing import Candidates, append, draw_candidates
from outrider.drafting.picking.edits import edit_drafts
from outrider.drafting.picking.grammars import DraftGrammars
from outrider.drafting.picking.rows import DraftRow
from outrider.drafting.session import DraftSession
from outrider.engine.api import EngineApi, SequenceHandle, StepItem
from outrider.wire.messages import FeatureBlock

SHORT = 32
"""A session with more tokens than this to run is in prefill, and must not hold up the others."""
KEEP_UP = 64
"""Without a goal, fewer new tokens than this are not worth a forward of their own."""


@dataclass(slots=True, eq=False)
class _Draft:
    """What the model holds of a session."""

    sequence: SequenceHandle
    tree: GrowingTree | None = None  # what grows, or has grown, on the committed tokens
    base: int = 0  # how many these were


@dataclass(frozen=True, slots=True)
class _Part:
    """A session's part of a step: the chain of its next tokens, or the frontier of its tree."""

    session: DraftSession
    draft: _Draft
    tree: TokenTree
    ran: int = 0
    rows: tuple[DraftRow, ...] = ()  # logits wanted: of the last token, or of each node of the frontier
    growing: GrowingTree | None = None  # the tree that the rows are for
    nodes: tuple[int, ...] = (ROOT,)  # of that tree, one for each row

    @property
    def logits(self) -> Literal["all", "last", "none"]:
        if not self.rows:
            return "none"
        return "last" if self.nodes == (ROOT,) else "all"


class DraftModel:
    """Draws with the session's own parameters, seed and positions.

    The sequence in the engine holds KV for a prefix of the session's committed and drafted tokens; the rest
    (at least one token) is run by the next step. A tree's nodes stand beyond the committed tokens,
    uncommitted, until it is known which path was taken; the KV of that path is kept.
    """

    def __init__(
        self,
        engine: EngineApi,
        *,
        prefill_chunk: int,
        grammars: DraftGrammars,
        vocabulary: torch.Tensor | None = None,
        shape: TreeShape | None = None,
        tree_nodes: int = 0,
    ) -> None:
        """Args:
        engine: owned by the thread that calls the methods.
        prefill_chunk: most tokens of prompts that a step runs.
        grammars: follows the sessions' grammars.
        vocabulary: int64 ids of the columns of the engine's logits, if these are reduced.
        shape: of the trees; None: chains only.
        tree_nodes: most nodes of a tree.
        """
        self._engine = engine
        self._grammars = grammars
        self._prefill_chunk = prefill_chunk
        self._vocabulary = vocabulary
        self._columns = None if vocabulary is None else Columns.from_ids(vocabulary)
        self._shape = shape or TreeShape()
        self._tree_nodes = tree_nodes
        self._drafts: dict[DraftSession, _Draft] = {}

    @property
    def name(self) -> str:
        return "draft_model"

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def features(self) -> frozenset[str]:
        return frozenset()

    @property
    def last_feature_only(self) -> bool:
        return False

    @property
    def runs_ahead(self) -> bool:
        return True

    @property
    def usage(self) -> float:
        return self._engine.pool.ratio

    def open(self, session: DraftSession, features: Sequence[FeatureBlock]) -> None:
        self._drafts[session] = _Draft(self._engine.open(session.tokens, salt=session.tenant))
        self._grammars.open(session)

    def advance(self, session: DraftSession, same: int, features: Sequence[FeatureBlock]) -> None:
        draft = self._drafts[session]
        if draft.tree is not None:
            self._engine.commit(draft.sequence, draft.tree.ran_along(session.tokens[draft.base :]))
            draft.tree = None
        elif draft.sequence.kv_len > same:
            self._engine.rollback(draft.sequence, same)

    def step(self, sessions: Sequence[DraftSession]) -> StepReport:
        planned: list[_Part] = []
        starved = []
        for part in self._parts(sessions):
            if self._engine.reserve(part.draft.sequence, len(part.tree)):
                planned.append(part)
            else:
                starved.append(part.session)
        forward_ns = self._forward(planned) if planned else (0, 0)
        return StepReport(len(planned), starved, forward_ns)

    def _parts(self, sessions: Sequence[DraftSession]) -> list[_Part]:
        """What each session runs. Prefill takes a smaller part while others wait for a token."""
        parts: list[_Part] = []
        prefill: list[tuple[DraftSession, int]] = []
        for session in sessions:
            draft = self._drafts[session]
            if draft.tree is not None:
                parts += _frontier(session, draft, draft.tree)
                continue
            self._make_way(session, draft)
            count = len(session) - draft.sequence.kv_len
            if count <= SHORT:
                parts.append(self._next_tokens(session, draft, count))
            else:
                prefill.append((session, count))
        budget = self._prefill_chunk // 4 if parts else self._prefill_chunk
        for session, count in prefill:
            if budget <= 0:
                break
            # The last token is left for the step that draws from it.
            share = min(count if session.goal else count - 1, budget)
            parts.append(self._next_tokens(session, self._drafts[session], share))
            budget -= share
        return parts

    def _make_way(self, session: DraftSession, draft: _Draft) -> None:
        """What was drafted as a chain is no part of a tree; and something must be left to run."""
        if wants_tree(session, self._shape, self._tree_nodes):
            session.forget_ahead()
        if draft.sequence.kv_len >= len(session):
            self._engine.rollback(draft.sequence, len(session) - 1)

    def _next_tokens(self, session: DraftSession, draft: _Draft, count: int) -> _Part:
        start = draft.sequence.kv_len
        tree = TokenTree.chain(session.window(start, start + count))
        if start + count < len(session):
            return _Part(session, draft, tree)
        if not wants_tree(session, self._shape, self._tree_nodes):
            return _Part(session, draft, tree, rows=(DraftRow.of_chain(session),))
        growing = plant(session, self._shape, self._tree_nodes)
        row = DraftRow.of_tree(session, growing, ROOT)
        return _Part(session, draft, tree, rows=(row,), growing=growing)

    def _forward(self, planned: Sequence[_Part]) -> tuple[int, int]:
        """Run and draw; returns when the engine's part of it began and ended."""
        items = [
            StepItem(part.draft.sequence, part.tree, logits=part.logits, ran=part.ran) for part in planned
        ]
        start_ns = time.perf_counter_ns()
        output = self._engine.step(items)
        forward_ns = start_ns, time.perf_counter_ns()
        for part in planned:
            if part.nodes == (ROOT,):
                self._engine.commit(part.draft.sequence, range(len(part.tree)))
                part.draft.tree, part.draft.base = part.growing, len(part.session.tokens)
        rows = [row for part in planned for row in part.rows]
        if rows:
            edit_drafts(output.logits, rows, self._columns, self._grammars)
            drawn = iter(draw_candidates(output.logits, rows, self._vocabulary))
            for part in planned:
                for node, _ in zip(part.nodes, part.rows, strict=False):
                    _take_in(part, node, next(drawn))
        return forward_ns

    def finished(self, session: DraftSession) -> bool:
        draft = self._drafts[session]
        if draft.tree is not None:
            return draft.tree.done
        if session.goal:
            return (
                not wants_tree(session, self._shape, self._tree_nodes) and len(session.ahead) >= session.goal
            )
        return len(session) - draft.sequence.kv_len < KEEP_UP

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        tree = self._drafts[session].tree
        if tree is not None:
            return tree.proposal()
        chain = TokenTree.chain(session.ahead[:length])
        return replace(
            chain,
            draft_probs=tuple(session.laws[:length]),
            confidences=tuple(session.confidences[:length]),
        )

    def close(self, session: DraftSession) -> None:
        self._grammars.close(session)
        draft = self._drafts.pop(session, None)
        if draft is not None:
            self._engine.release(draft.sequence)


def _frontier(session: DraftSession, draft: _Draft, tree: GrowingTree) -> list[_Part]:
    """What a tree runs next: one part, or none if it is done."""
    if tree.done:
        return []
    rows = tuple(DraftRow.of_tree(session, tree, node) for node in tree.frontier)
    return [_Part(session, draft, tree.running(), tree.ran, rows, tree, tree.frontier)]


def _take_in(part: _Part, node: int, candidates: Candidates) -> None:
    """Let what was drawn after a row follow there."""
    if part.growing is None:
        append(part.session, candidates)
    else:
        part.growing.grow(node, candidates.token_ids, candidates.confidences, candidates.laws)
