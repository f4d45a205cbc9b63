"""Medusa as a remote drafter: heads that each foretell one of the next tokens from one hidden state.

The state is that of the last token that has KV; the token after it is committed already, and the first head
foretells the one after that. No head knows what another one says, so a tree is the product of their choices:
all nodes at one depth share their logits, as long as no edit tells their paths apart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from outrider.core.editing import is_edited
from outrider.core.features import LAST_HIDDEN
from outrider.core.logit_table import Columns
from outrider.core.models import ModelInfo
from outrider.core.trees import TokenTree
from outrider.drafting.growth.planting import is_drawn
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.growth.tree import GrowingTree
from outrider.drafting.heads.features import last_row
from outrider.drafting.heads.medusa_runner import HeadRow, MedusaRunner
from outrider.drafting.method import StepReport
from outrider.drafting.picking.drawing import Candidates, draw_candidates
from outrider.drafting.picking.edits import edit_drafts
from outrider.drafting.picking.grammars import DraftGrammars
from outrider.drafting.picking.rows import DraftRow
from outrider.drafting.session import DraftSession
from outrider.wire.messages import FeatureBlock

MOST_SESSIONS = 32
"""Sessions of one step: their logits are held at the same time."""
MOST_ROWS = 128
"""Rows of logits that are edited and drawn from at once: each needs a copy if its session is edited."""


@dataclass(slots=True, eq=False)
class _Held:
    """What is held of a session."""

    position: int = -1  # of the token that `state` is of
    state: torch.Tensor | None = None  # bf16 [hidden_size]
    tree: GrowingTree | None = None
    wanted: tuple[int, int] = (0, 0)  # depth and nodes that `tree` grows to


@dataclass(frozen=True, slots=True)
class _Level:
    """Nodes of a tree whose children are drawn from the same row of logits."""

    tree: GrowingTree
    nodes: tuple[int, ...]
    row: DraftRow  # of the first node
    logits: int  # row of the heads' logits


@dataclass(slots=True)
class _Batch:
    """The logits of a step's sessions, by session and depth."""

    sessions: list[DraftSession]
    trees: list[GrowingTree]
    first: list[int] = field(default_factory=list)  # of each session, its row of depth 0
    rows: list[HeadRow] = field(default_factory=list)


class Medusa:
    """Drafts with Medusa heads (implements DraftingMethod)."""

    def __init__(
        self,
        runner: MedusaRunner,
        info: ModelInfo,
        *,
        shape: TreeShape,
        tree_nodes: int,
        grammars: DraftGrammars,
        vocabulary: torch.Tensor | None = None,
    ) -> None:
        """Args:
        runner: owned by the thread that calls the methods.
        info: of the target, under the heads' name.
        shape: of the trees.
        tree_nodes: most nodes of a tree.
        grammars: follows the sessions' grammars.
        vocabulary: int64 ids of the columns of the logits, if these are reduced.
        """
        self._runner = runner
        self._info = info
        self._shape = shape
        self._tree_nodes = tree_nodes
        self._grammars = grammars
        self._vocabulary = vocabulary
        self._columns = None if vocabulary is None else Columns.from_ids(vocabulary)
        self._held: dict[DraftSession, _Held] = {}

    @property
    def name(self) -> str:
        return "medusa"

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def features(self) -> frozenset[str]:
        return frozenset({LAST_HIDDEN})

    @property
    def last_feature_only(self) -> bool:
        return True

    @property
    def runs_ahead(self) -> bool:
        return False  # the next proposal stands on a hidden state that only the target has

    @property
    def usage(self) -> float:
        return 0.0  # one row a session, and sessions are counted

    def open(self, session: DraftSession, features: Sequence[FeatureBlock]) -> None:
        self._held[session] = _Held()
        self._grammars.open(session)
        self._take_in(session, features)

    def advance(self, session: DraftSession, same: int, features: Sequence[FeatureBlock]) -> None:
        held = self._held[session]
        if held.position != len(session.tokens) - 2:
            held.tree = None
        session.forget_ahead()
        self._take_in(session, features)

    def _take_in(self, session: DraftSession, features: Sequence[FeatureBlock]) -> None:
        """Raises ProtocolError: the features are not what was asked for."""
        held = self._held[session]
        found = last_row(features, LAST_HIDDEN, self._info.hidden_size, most=len(session.tokens) - 1)
        if found is not None:
            held.position, held.state = found
            held.tree = None

    def step(self, sessions: Sequence[DraftSession]) -> StepReport:
        owing = [session for session in sessions if not self.finished(session)][:MOST_SESSIONS]
        if not owing:
            return StepReport(0)
        batch = self._batch(owing)
        start_ns = time.perf_counter_ns()
        states = [self._held[session].state for session in owing]
        logits = self._runner.logits(torch.stack([own for own in states if own is not None]), batch.rows)
        forward_ns = start_ns, time.perf_counter_ns()
        while levels := _levels(batch):
            for start in range(0, len(levels), MOST_ROWS):
                part = levels[start : start + MOST_ROWS]
                for level, own in zip(part, self._candidates(logits, part), strict=True):
                    for node in level.nodes:
                        level.tree.grow(node, own.token_ids, own.confidences, own.laws)
        return StepReport(len(owing), (), forward_ns)

    def _batch(self, sessions: list[DraftSession]) -> _Batch:
        batch = _Batch(sessions, [self._tree(session, self._held[session]) for session in sessions])
        for number, session in enumerate(sessions):
            batch.first.append(len(batch.rows))
            depth = min(session.goal, self._runner.heads)
            batch.rows += [HeadRow(number, head) for head in range(depth)]
        return batch

    def _candidates(self, logits: torch.Tensor, levels: Sequence[_Level]) -> list[Candidates]:
        own = logits[torch.tensor([level.logits for level in levels])]
        rows = [level.row for level in levels]
        edit_drafts(own, rows, self._columns, self._grammars)
        return draw_candidates(own, rows, self._vocabulary)

    def _tree(self, session: DraftSession, held: _Held) -> GrowingTree:
        """The session's tree as it is wanted now."""
        wanted = (session.goal, min(max(session.nodes, session.goal), max(self._tree_nodes, session.goal)))
        if held.tree is None or held.wanted != wanted:
            shape = self._shape.within(*wanted)
            # A choice among tokens that were drawn would change their law: dynamic trees choose theirs.
            drawn = is_drawn(session) and (shape.is_static or shape.is_chain)
            depth = min(session.goal, self._runner.heads)
            held.tree = GrowingTree(shape, depth=depth, nodes=wanted[1], drawn=drawn)
            held.wanted = wanted
        return held.tree

    def finished(self, session: DraftSession) -> bool:
        held = self._held[session]
        if not session.goal or not _is_current(session, held):
            return True
        return self._tree(session, held).done

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        held = self._held[session]
        if held.tree is None or not _is_current(session, held):
            return TokenTree()
        return held.tree.proposal().pruned(length).truncated(nodes)

    def close(self, session: DraftSession) -> None:
        self._grammars.close(session)
        self._held.pop(session, None)


def _is_current(session: DraftSession, held: _Held) -> bool:
    """Whether the state is that of the last token that has KV: the one before the last."""
    return held.state is not None and held.position == len(session.tokens) - 2


def _levels(batch: _Batch) -> list[_Level]:
    """The frontiers of all trees, by the rows of logits that they need."""
    levels: list[_Level] = []
    for session, tree, first in zip(batch.sessions, batch.trees, batch.first, strict=True):
        nodes = tree.frontier
        # Edits and draws tell the paths apart.
        alone = is_edited(session.sampling) or tree.drawn
        for own in [(node,) for node in nodes] if alone else [nodes] * bool(nodes):
            row = DraftRow.of_tree(session, tree, own[0])
            levels.append(_Level(tree, own, row, first + tree.level))
    return levels
