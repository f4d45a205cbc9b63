"""Prompt lookup: what followed the last few tokens before will follow them again.

Source: Saxena, "Prompt Lookup Decoding", 2023. Needs no model. Pays where the output repeats the
prompt or itself: translation, summaries, retrieval, edits of code.

The most recent occurrence is taken. Measured on 72 greedy answers of SmolLM2-135M-Instruct to Spec-Bench
prompts, n-grams of 2 to 4, 8 draft tokens, tokens per round: most recent 1.627, most recent one with 8
tokens after it 1.627, first one (as in transformers) 1.604.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.models import ModelInfo
from outrider.core.trees import TokenTree
from outrider.drafting.method import StepReport
from outrider.drafting.lookup.ngrams import NgramIndex
from outrider.drafting.session import DraftSession
from outrider.wire.messages import FeatureBlock

TOKENS_PER_STEP = 2048
"""Tokens indexed in one step: about 2 ms."""


@dataclass(slots=True)
class _Lookup:
    index: NgramIndex
    looked_up: bool = False


class PromptLookup:
    """Matches the last `ngram_max` down to `ngram_min` tokens against all earlier ones."""

    def __init__(self, *, ngram_min: int, ngram_max: int, max_tokens: int) -> None:
        self._ngram_min = ngram_min
        self._ngram_max = ngram_max
        self._max_tokens = max_tokens  # indexed over all sessions
        self._tokens = 0
        self._lookups: dict[DraftSession, _Lookup] = {}

    @property
    def name(self) -> str:
        return "prompt_lookup"

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(model_name=self.name)

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
        self._lookups[session] = _Lookup(NgramIndex(self._ngram_min, self._ngram_max))

    def advance(self, session: DraftSession, same: int, features: Sequence[FeatureBlock]) -> None:
        # A new end may match better elsewhere, so what is left of the last proposal is not kept.
        session.ahead.clear()
        self._lookups[session].looked_up = False

    def step(self, sessions: Sequence[DraftSession]) -> StepReport:
        progressed = 0
        starved = []
        budget = TOKENS_PER_STEP
        for session in sorted(sessions, key=self._pending):  # a long prompt holds up nobody
            lookup = self._lookups[session]
            index = lookup.index
            chunk = min(self._pending(session), budget)
            if self._tokens + chunk > self._max_tokens:
                starved.append(session)
                continue
            index.extend(session.tokens, index.indexed + chunk)
            self._tokens += chunk
            budget -= chunk
            progressed += 1
            if index.indexed == len(session.tokens):
                session.ahead = _continuation(session.tokens, index.find(session.tokens), session.goal)
                lookup.looked_up = True
        return StepReport(progressed, starved)

    def _pending(self, session: DraftSession) -> int:
        return len(session.tokens) - self._lookups[session].index.indexed

    def finished(self, session: DraftSession) -> bool:
        return self._lookups[session].looked_up

    def proposal(self, session: DraftSession, length: int, nodes: int) -> TokenTree:
        return TokenTree.chain(session.ahead[:length])

    def close(self, session: DraftSession) -> None:
        lookup = self._lookups.pop(session, None)
        if lookup is not None:
            self._tokens -= lookup.index.indexed


def _continuation(tokens: list[int], start: int, length: int) -> list[int]:
    """`length` tokens from `start` on; past the end, the copy goes on from itself, as a loop would."""
    if start < 0:
        return []
    period = len(tokens) - start
    copied = tokens[start : start + length]
    while len(copied) < length:
        copied.append(copied[-period])
    return copied
