"""Sessions and commits that tests use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.core.params import (
    Grammar,
    GrammarKind,
    LogitEdits,
    SamplingParams,
    SpeculationParams,
    StopParams,
)
from outrider.core.sessions import Commit, FinishReason, SessionRecord

EDITS = LogitEdits(
    grammar=Grammar(GrammarKind.REGEX, "[a-zä]+\n"),
    allowed_token_ids=(3, 1),
    bad_words=((1, 2), (3,)),
    min_tokens=2,
    end_token_ids=(2, 7),
    logit_bias=((1, -100.0), (2, 0.1)),
    repetition_penalty=1.1,
    frequency_penalty=-0.3,
    presence_penalty=0.7,
)
RECORD = SessionRecord(
    session_id="s-1",
    prompt=(1, 2**31 - 1, 0),
    sampling=SamplingParams(temperature=0.1, top_k=5, top_p=0.9, min_p=0.05, seed=2**64 - 1),
    stop=StopParams(max_tokens=50, stop_token_ids=frozenset({2, 7})),
    speculation=SpeculationParams(enabled=True, max_draft_tokens=3, drafter="draft_model"),
    model="big (bfloat16, tokenizer 0f)",
)


def record(session_id: str = "s-1", **changes: Any) -> SessionRecord:
    """RECORD with changes."""
    return replace(RECORD, session_id=session_id, **changes)


def commit(
    base_len: int,
    *token_ids: int,
    session_id: str = "s-1",
    epoch: int = 1,
    finish: FinishReason | None = None,
) -> Commit:
    """A commit of session s-1 unless said otherwise."""
    return Commit(session_id, epoch, base_len, token_ids, finish)
