"""A smaller model of the same tokenizer drafts, one token a step for all sessions together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from outrider.core.logit_table import Columns
from outrider.core.models import ModelInfo
from outrider.core.trees import TokenTree
from outrider.drafting.method import StepReport
from outrider.drafting.picking.drawing import draw_next
from outrider.drafting.picking.edits import edit_drafts
from outrider.drafting.picking.grammars import DraftGrammars
from outrider.drafting.session import DraftSession
from outrider.engine.api import EngineApi, SequenceHandle, StepItem
from outrider.wire.messages import FeatureBlock

SHORT = 32
"""A session with more tokens than this to run is in prefill, and must not hold up the others."""
KEEP_UP = 64
"""Without a goal, fewer new tokens than this are not worth a forward of their own."""


class DraftModel:
    """Draws with the session's own parameters, seed and positions.

    The sequence in the engine holds KV for a prefix of the session's committed and drafted
    tokens; the rest (at least one token) is run by the next step.
    """

    def __init__(
        self,
        engine: EngineApi,
        *,
        prefill_chunk: int,
        grammars: DraftGrammars,
        vocabulary: torch.Tensor | None = None,
    ) -> None:
        """Args:
        engine: owned by the thread that calls the methods.
        prefill_chunk: most tokens of prompts that a step runs.
        grammars: follows the sessions' grammars.
        vocabulary: int64 ids of the columns of the engine's logits, if these are reduced.
        """
        self._engine = engine
        self._grammars = grammars
        self._prefill_chunk = prefill_chunk
        self._vocabulary = vocabulary
        self._columns = None if vocabulary is None else Columns.from_ids(vocabulary)
        self._sequences: dict[DraftSession, SequenceHandle] = {}

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
        self._sequences[session] = self._engine.open(session.tokens)
        self._grammars.open(session)

    def advance(self, session: DraftSession, same: int, features: Sequence[FeatureBlock]) -> None:
        sequence = self._sequences[session]
        if sequence.kv_len > same:
            self._engine.rollback(sequence, same)
        self._grammars.advance(session, same)

    def step(self, sessions: Sequence[DraftSession]) -> StepReport:
        planned: list[tuple[DraftSession, SequenceHandle, int]] = []
        starved = []
        for session, count in self._shares(sessions):
            sequence = self._sequences[session]
            if self._engine.reserve(sequence, count):
                planned.append((session, sequence, count))
            else:
                starved.append(session)
        forward_ns = self._forward(planned) if planned else (0, 0)
        return StepReport(len(planned), starved, forward_ns)

    def _shares(self, sessions: Sequence[DraftSession]) -> list[tuple[DraftSession, int]]:
        """How many tokens each session runs. Prefill takes a smaller part while others wait for a token."""
        short: list[tuple[DraftSession, int]] = []
        prefill: list[tuple[DraftSession, int]] = []
        for session in sessions:
            count = len(session) - self._sequences[session].kv_len
            (short if count <= SHORT else prefill).append((session, count))
        budget = self._prefill_chunk // 4 if short else self._prefill_chunk
        for session, count in prefill:
            if budget <= 0:
                break
            # The last token is left for the step that draws from it.
            share = min(count if session.goal else count - 1, budget)
            short.append((session, share))
            budget -= share
        return short

    def _forward(self, planned: Sequence[tuple[DraftSession, SequenceHandle, int]]) -> tuple[int, int]:
        """Run and draw; returns when the engine's part of it began and ended."""
        items = []
        drawing = []
        for session, sequence, count in planned:
            start = sequence.kv_len
            length = len(session)
            draws = start + count == length
            if draws:
                drawing.append(session)
            items.append(
                StepItem(
                    sequence,
                    TokenTree.chain(session.window(start, start + count)),
                    logits="last" if draws else "none",
                )
            )
        start_ns = time.perf_counter_ns()
        output = self._engine.step(items)
        forward_ns = start_ns, time.perf_counter_ns()
        for _, sequence, count in planned:
            self._engine.commit(sequence, range(count))
        if drawing:
            edit_drafts(output.logits, drawing, self._columns, self._grammars)
            draw_next(output.logits, drawing, self._vocabulary)
        return forward_ns

    def finished(self, session: DraftSession) -> bool:
        if session.goal:
            return len(session.ahead) >= session.goal
        return len(session) - self._sequences[session].kv_len < KEEP_UP

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        return replace(TokenTree.chain(session.ahead[:length]), draft_probs=tuple(session.laws[:length]))

    def close(self, session: DraftSession) -> None:
        self._grammars.close(session)
        sequence = self._sequences.pop(session, None)
        if sequence is not None:
            self._engine.release(sequence)
