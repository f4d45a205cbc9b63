"""A draft model with another tokenizer than the target's: chains of tokens, translated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.editing import is_edited
from outrider.core.models import ModelInfo
from outrider.core.params import Acceptance
from outrider.core.trees import TokenTree
from outrider.drafting.foreign.context import DraftContext
from outrider.drafting.foreign.picking import ForeignPicker, Pick
from outrider.drafting.foreign.shared_ids import SharedIds
from outrider.drafting.foreign.state import ForeignState
from outrider.drafting.foreign.token_texts import TokenTexts
from outrider.drafting.method import StepReport
from outrider.drafting.picking.rows import DraftRow
from outrider.drafting.session import DraftSession
from outrider.engine.api import EngineApi, SequenceHandle, StepItem
from outrider.wire.messages import FeatureBlock

READ_AT_ONCE = 2048
"""Target tokens of a session that a step translates: a few milliseconds."""
SHORT = 32
"""A session with more tokens than this to run is in prefill, and must not hold up the others."""
KEEP_UP = 64
"""Without a goal, fewer new tokens than this are not worth a forward of their own."""
LEAST_SHARE = 0.25
"""Share of the draft vocabulary that the target must have too for drafts by shared ids."""


@dataclass(frozen=True, slots=True)
class _Part:
    session: DraftSession
    state: ForeignState
    sequence: SequenceHandle
    tree: TokenTree
    draws: bool  # the last of these tokens is followed by a draft token


class ForeignModel:
    """Drafts text for a target with other tokens (arXiv 2502.05202).

    Plainly greedy sessions are drafted for by text: the draft model picks its likeliest token, and the text
    is cut into the target's tokens. Others, by the rule "coupled", by shared ids: the draft model picks among
    the tokens that both have, by the target's noise, edited as the target's logits are. By the other rules
    drafts are chosen, not drawn, so text does for them too.
    """

    def __init__(
        self,
        engine: EngineApi,
        target: ModelInfo,
        target_texts: TokenTexts,
        draft_texts: TokenTexts,
        shared: SharedIds,
        *,
        prefill_chunk: int,
    ) -> None:
        """Args:
        engine: the draft model; owned by the thread that calls the methods.
        target: tokenizer and vocabulary that proposals are in.
        target_texts: the target's tokenizer.
        draft_texts: the draft model's.
        shared: tokens of both.
        prefill_chunk: most tokens of prompts that a step runs.
        """
        self._engine = engine
        self._target = target
        self._target_texts = target_texts
        self._draft_texts = draft_texts
        self._picker = ForeignPicker(shared)
        self._shares = len(shared) >= max(1.0, LEAST_SHARE * engine.info.vocab_size)
        self._prefill_chunk = prefill_chunk
        self._states: dict[DraftSession, ForeignState] = {}

    @property
    def name(self) -> str:
        return "draft_model"

    @property
    def info(self) -> ModelInfo:
        own = self._engine.info
        return ModelInfo(
            own.model_name,
            self._target.tokenizer_fingerprint,
            self._target.vocab_size,
            own.context_length,
            own.dtype,
            own.hidden_size,
            own.num_layers,
        )

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
        self._states[session] = ForeignState(DraftContext(self._target_texts, self._draft_texts))

    def advance(self, session: DraftSession, same: int, features: Sequence[FeatureBlock]) -> None:
        # Read at once where that is short, so that a run-ahead draft is known to be there.
        if len(session.tokens) - self._states[session].context.taken <= SHORT:
            self._read(session, self._states[session])

    def step(self, sessions: Sequence[DraftSession]) -> StepReport:
        planned: list[_Part] = []
        starved = []
        ready = []
        for session in sessions:
            state = self._states[session]
            self._read(session, state)
            if state.context.taken == len(session.tokens):
                ready.append(session)
        progressed = len(sessions) - len(ready)
        for part in self._parts(ready):
            if self._engine.reserve(part.sequence, len(part.tree)):
                planned.append(part)
            else:
                starved.append(part.session)
        forward_ns = self._forward(planned) if planned else (0, 0)
        return StepReport(progressed + len(planned), starved, forward_ns)

    def finished(self, session: DraftSession) -> bool:
        state = self._states[session]
        if state.context.taken < len(session.tokens):
            return False
        # A text of which nothing is readable yet gives the model nothing to go on from.
        if self._full(state) or len(state) == 0:
            return True
        if not session.goal:
            return state.missing < KEEP_UP
        enough = len(state.renamed.token_ids) >= session.goal
        return enough or state.ended or len(state.ahead) >= 2 * session.goal + 2

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        renamed = self._states[session].renamed
        chain = TokenTree.chain(renamed.token_ids[:length])
        return TokenTree(chain.token_ids, chain.parents, confidences=renamed.confidences[:length])

    def close(self, session: DraftSession) -> None:
        state = self._states.pop(session, None)
        if state is not None and state.sequence is not None:
            self._engine.release(state.sequence)

    def _read(self, session: DraftSession, state: ForeignState) -> None:
        """Take in committed tokens, a part of them at a time."""
        if state.context.taken == len(session.tokens):
            return
        same = state.take(session, READ_AT_ONCE, by_text=self._drafts_by_text(session))
        if state.sequence is not None and state.sequence.kv_len > same:
            self._engine.rollback(state.sequence, same)
        if state.sequence is not None and state.sequence.kv_len >= len(state):
            # All was run before: the next token is drawn from the last one's logits.
            self._engine.rollback(state.sequence, len(state) - 1)
        state.rename(session, self._target_texts, self._draft_texts)

    def _drafts_by_text(self, session: DraftSession) -> bool:
        if session.acceptance is not Acceptance.COUPLED or not self._shares:
            return True
        return session.sampling.temperature == 0.0 and not is_edited(session.sampling)

    def _full(self, state: ForeignState) -> bool:
        """Whether the draft model's context is used up, which the target's tokens do not tell."""
        context = self._engine.info.context_length
        return bool(context) and len(state) > context

    def _parts(self, sessions: Sequence[DraftSession]) -> list[_Part]:
        """What each session runs. Prefill takes a smaller part while others wait for a token."""
        parts: list[_Part] = []
        prefill: list[DraftSession] = []
        for session in sessions:
            if self.finished(session):
                continue
            state = self._states[session]
            if state.sequence is None:
                state.sequence = self._engine.open(state.context.ids, salt=session.tenant)
            if state.missing <= SHORT:
                parts += self._part(session, state, state.sequence, state.missing)
            else:
                prefill.append(session)
        budget = self._prefill_chunk // 4 if parts else self._prefill_chunk
        for session in prefill:
            state = self._states[session]
            # The last token is left for the step that draws from it.
            share = min(state.missing if session.goal else state.missing - 1, budget)
            if share > 0 and state.sequence is not None:
                parts += self._part(session, state, state.sequence, share)
                budget -= share
        return parts

    def _part(
        self, session: DraftSession, state: ForeignState, sequence: SequenceHandle, count: int
    ) -> list[_Part]:
        start = sequence.kv_len
        tokens = state.window(start, start + count)
        draws = bool(session.goal) and start + count == len(state)
        return [_Part(session, state, sequence, TokenTree.chain(tokens), draws)] if tokens else []

    def _forward(self, planned: Sequence[_Part]) -> tuple[int, int]:
        """Run and draw; returns when the engine's part of it began and ended."""
        items = [
            StepItem(part.sequence, part.tree, logits="last" if part.draws else "none") for part in planned
        ]
        start_ns = time.perf_counter_ns()
        output = self._engine.step(items)
        forward_ns = start_ns, time.perf_counter_ns()
        for part in planned:
            self._engine.commit(part.sequence, range(len(part.tree)))
        drawing = [part for part in planned if part.draws]
        for part, pick in zip(drawing, self._picks(drawing, output.logits), strict=True):
            part.state.add(pick, self._draft_texts)
            part.state.rename(part.session, self._target_texts, self._draft_texts)
        return forward_ns

    def _picks(self, parts: Sequence[_Part], logits: torch.Tensor) -> list[Pick]:
        """The next draft token of each part; `logits` has a row for each."""
        by_text = [row for row, part in enumerate(parts) if part.state.by_text]
        by_id = [row for row, part in enumerate(parts) if not part.state.by_text]
        drafts = [
            DraftRow(parts[row].session, tuple(pick.target_id for pick in parts[row].state.ahead))
            for row in by_id
        ]
        picks = dict(zip(by_text, self._picker.by_text(logits, by_text), strict=True))
        picks |= dict(zip(by_id, self._picker.by_shared_ids(logits, by_id, drafts), strict=True))
        return [picks[row] for row in range(len(parts))]
