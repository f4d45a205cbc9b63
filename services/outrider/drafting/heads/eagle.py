"""EAGLE and EAGLE-3 as a remote drafter: a head that goes on from the target's own hidden states.

The row of position i joins the target's features of token i with token i + 1. Rows of committed tokens run
once, as their features come; all that is drafted stands on the last of them. It was made of the head's own
states, so it is forgotten with the next commit and drafted anew from true ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from outrider.core.errors import OverloadedError
from outrider.core.logit_table import Columns
from outrider.core.models import ModelInfo
from outrider.core.trees import TokenTree
from outrider.drafting.growth.planting import is_drawn
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.growth.tree import ROOT, GrowingTree
from outrider.drafting.heads.engine import DraftRows, HeadEngine, TrueRows
from outrider.drafting.heads.features import FeatureRows
from outrider.drafting.method import StepReport
from outrider.drafting.picking.drawing import draw_candidates
from outrider.drafting.picking.edits import edit_drafts
from outrider.drafting.picking.grammars import DraftGrammars
from outrider.drafting.picking.rows import DraftRow
from outrider.drafting.session import DraftSession
from outrider.engine.sequence import Sequence as HeadSequence
from outrider.wire.messages import FeatureBlock

SHORT = 32
"""A session with more true rows than this to run is in prefill, and must not hold up the others."""
KEEP_UP = 64
"""Without a goal, fewer new rows than this are not worth a forward of their own."""


@dataclass(slots=True, eq=False)
class _Held:
    """What the head holds of a session."""

    sequence: HeadSequence
    rows: FeatureRows
    length: int  # committed tokens that `tree` stands on
    tree: GrowingTree | None = None
    wanted: tuple[int, int] = (0, 0)  # depth and nodes that `tree` grows to
    states: dict[int, torch.Tensor] = field(default_factory=dict)  # [hidden_size] of ROOT and nodes that ran

    def forget_drafts(self, length: int) -> None:
        """All that stands on the last true row, and its state."""
        self.tree = None
        self.states.clear()
        self.length = length


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A node whose children are to be drawn."""

    tree: GrowingTree
    node: int
    row: DraftRow
    state: torch.Tensor  # [hidden_size]


_Work = tuple[DraftSession, _Held, TrueRows | DraftRows]


class Eagle:
    """Drafts with an EAGLE or EAGLE-3 head (implements DraftingMethod)."""

    def __init__(
        self,
        engine: HeadEngine,
        info: ModelInfo,
        features: Sequence[str],
        *,
        shape: TreeShape,
        tree_nodes: int,
        prefill_chunk: int,
        grammars: DraftGrammars,
        vocabulary: torch.Tensor | None = None,
    ) -> None:
        """Args:
        engine: owned by the thread that calls the methods.
        info: of the target, under the head's name.
        features: in the order in which the head joins them.
        shape: of the trees.
        tree_nodes: most nodes of a tree.
        prefill_chunk: most true rows of prompts that a step runs.
        grammars: follows the sessions' grammars.
        vocabulary: int64 ids of the columns of the head's logits, if these are reduced.
        """
        self._engine = engine
        self._info = info
        self._features = tuple(features)
        self._shape = shape
        self._tree_nodes = tree_nodes
        self._prefill_chunk = prefill_chunk
        self._grammars = grammars
        self._vocabulary = vocabulary
        self._columns = None if vocabulary is None else Columns.from_ids(vocabulary)
        self._held: dict[DraftSession, _Held] = {}

    @property
    def name(self) -> str:
        return "eagle"

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def features(self) -> frozenset[str]:
        return frozenset(self._features)

    @property
    def last_feature_only(self) -> bool:
        return False

    @property
    def runs_ahead(self) -> bool:
        return False  # the next proposal stands on features that only the target has

    @property
    def usage(self) -> float:
        return self._engine.pool.ratio

    def open(self, session: DraftSession, features: Sequence[FeatureBlock]) -> None:
        rows = FeatureRows(self._features, self._info.hidden_size)
        held = _Held(self._engine.open(), rows, len(session.tokens))
        self._held[session] = held
        self._grammars.open(session)
        self._take_in(session, held, features)

    def advance(self, session: DraftSession, same: int, features: Sequence[FeatureBlock]) -> None:
        held = self._held[session]
        if len(session.tokens) != held.length:
            held.forget_drafts(len(session.tokens))
        session.forget_ahead()
        self._take_in(session, held, features)

    def _take_in(self, session: DraftSession, held: _Held, features: Sequence[FeatureBlock]) -> None:
        """Raises:
        ProtocolError: the features do not go on where the last ones ended, or are not what was asked for.
        OverloadedError: more rows wait, over all sessions, than the pool could ever hold, and this one has
            a part in it.
        """
        held.rows.add(features, most=len(session.tokens) - 1)
        most = self._engine.pool_tokens
        if held.rows.waiting > SHORT:
            waiting = sum(own.rows.waiting for own in self._held.values())
            if waiting > most:
                raise OverloadedError(f"{waiting} rows of features wait, {most} fit")
        if held.rows.lagging:
            lagging = sum(own.rows.lagging for own in self._held.values())
            if lagging > most:
                raise OverloadedError(f"{lagging} rows of features lack others, {most} may wait")

    def step(self, sessions: Sequence[DraftSession]) -> StepReport:
        planned, starved = self._plan(sessions)
        start_ns = time.perf_counter_ns()
        if planned:
            self._forward(planned)
        fresh = [leaf for session in sessions for leaf in self._leaves(session)]
        logits = self._engine.logits(torch.stack([leaf.state for leaf in fresh])) if fresh else None
        forward_ns = start_ns, time.perf_counter_ns()
        if logits is None:
            return StepReport(len(planned), starved, forward_ns if planned else (0, 0))
        rows = [leaf.row for leaf in fresh]
        edit_drafts(logits, rows, self._columns, self._grammars)
        for leaf, own in zip(fresh, draw_candidates(logits, rows, self._vocabulary), strict=True):
            leaf.tree.grow(leaf.node, own.token_ids, own.confidences, own.laws)
        grown = len({id(leaf.tree) for leaf in fresh})
        return StepReport(max(len(planned), grown), starved, forward_ns)

    def _plan(self, sessions: Sequence[DraftSession]) -> tuple[list[_Work], list[DraftSession]]:
        """What runs, and the sessions for which there is no room."""
        planned: list[_Work] = []
        starved = []
        for session, count in self._shares(sessions):
            held = self._held[session]
            room = count or len(self._tree(session, held).running())
            if not self._engine.reserve(held.sequence, room):
                starved.append(session)
            elif count:
                planned.append((session, held, self._true_rows(session, held, count)))
            elif held.tree is not None and held.tree.level:
                planned.append((session, held, _draft_rows(held, held.tree)))
        return planned, starved

    def _shares(self, sessions: Sequence[DraftSession]) -> list[tuple[DraftSession, int]]:
        """How many true rows each session runs; 0: it drafts. Prefill takes less while others wait."""
        short: list[tuple[DraftSession, int]] = []
        prefill: list[tuple[DraftSession, int]] = []
        for session in sessions:
            count = self._held[session].rows.waiting
            if count or not self.finished(session):
                (short if count <= SHORT else prefill).append((session, count))
        budget = self._prefill_chunk // 4 if short else self._prefill_chunk
        for session, count in prefill:
            share = min(count, budget)
            if share:
                short.append((session, share))
            budget -= share
        return short

    def _true_rows(self, session: DraftSession, held: _Held, count: int) -> TrueRows:
        first = held.rows.first
        start = first + held.sequence.kv_len + 1
        return TrueRows(held.sequence, session.tokens[start : start + count], held.rows.take(count), first)

    def _forward(self, planned: Sequence[_Work]) -> None:
        outputs = self._engine.step([item for _, _, item in planned])
        for (session, held, item), states in zip(planned, outputs, strict=True):
            if isinstance(item, TrueRows):
                held.forget_drafts(len(session.tokens))
                if held.rows.first + held.sequence.kv_len == len(session.tokens) - 1:
                    held.states[ROOT] = states[-1]
            elif held.tree is not None:
                held.states.update(zip(held.tree.frontier, states, strict=True))

    def _leaves(self, session: DraftSession) -> list[_Leaf]:
        """The frontier of the session's tree, if its states are there."""
        held = self._held[session]
        if not session.goal or ROOT not in held.states or held.rows.waiting:
            return []
        tree = self._tree(session, held)
        if tree.done or tree.frontier[0] not in held.states:
            return []
        return [
            _Leaf(tree, node, DraftRow.of_tree(session, tree, node), held.states[node])
            for node in tree.frontier
        ]

    def _tree(self, session: DraftSession, held: _Held) -> GrowingTree:
        """The session's tree as it is wanted now."""
        wanted = (session.goal, min(max(session.nodes, session.goal), max(self._tree_nodes, session.goal)))
        if held.tree is None or held.wanted != wanted:
            shape = self._shape.within(*wanted)
            # A choice among tokens that were drawn would change their law: dynamic trees choose theirs.
            drawn = is_drawn(session) and (shape.is_static or shape.is_chain)
            held.tree = GrowingTree(shape, depth=wanted[0], nodes=wanted[1], drawn=drawn)
            held.wanted = wanted
            held.states = {ROOT: held.states[ROOT]} if ROOT in held.states else {}
        return held.tree

    def finished(self, session: DraftSession) -> bool:
        held = self._held[session]
        if not session.goal:
            return held.rows.waiting < KEEP_UP
        if held.rows.waiting:
            return False
        return ROOT not in held.states or self._tree(session, held).done

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        held = self._held[session]
        if ROOT not in held.states:
            return TokenTree()
        return self._tree(session, held).proposal().pruned(length).truncated(nodes)

    def close(self, session: DraftSession) -> None:
        self._grammars.close(session)
        held = self._held.pop(session, None)
        if held is not None:
            self._engine.release(held.sequence)


def _draft_rows(held: _Held, tree: GrowingTree) -> DraftRows:
    """The frontier's nodes, each with what came out of its parent."""
    states = torch.stack([held.states[tree[node].parent] for node in tree.frontier])
    return DraftRows(held.sequence, tree.running(), tree.ran, states, held.rows.first)
