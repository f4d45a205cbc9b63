"""Fills OpenAI's shapes: whole answers and the events of streams, for chat and for completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from outrider.core.sessions import SpeculationStats, Usage
from outrider.gateway.openai import responses as r
from outrider.gateway.openai.requests import ChatRequest, CompletionRequest
from outrider.wire.messages import GenerationDelta, GenerationFinished, VerifierInfo


@dataclass(slots=True)
class Answer:
    """One choice as it grows."""

    index: int
    model: str
    seed: int
    prompt: tuple[int, ...]
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished: GenerationFinished | None = None

    @property
    def finish_reason(self) -> str:
        """In OpenAI's words."""
        return self.finished.reason.value if self.finished else ""


class Shape(Protocol):
    """What differs between chat and completions."""

    def whole(self, answers: Sequence[Answer]) -> Any:
        """Body of an answer that is no stream."""

    def opening(self, answer: Answer) -> Any | None:
        """First event of a choice, if there is one before its text."""

    def delta(self, answer: Answer, delta: GenerationDelta) -> Any:
        """Event with new text."""

    def closing(self, answer: Answer, answers: Sequence[Answer]) -> Any:
        """Last event of a choice; `answers` are all that have finished."""

    def usage(self, answers: Sequence[Answer]) -> Any:
        """Event with the usage of the whole stream."""


class _Base:
    prefix = ""

    def __init__(self, request: ChatRequest | CompletionRequest) -> None:
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._with_ids = bool(request.return_token_ids)
        self._with_stats = request.speculation.stats
        self._with_usage = request.include_usage

    def _ids(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(token_ids)} if self._with_ids else {}

    def _prompt_ids(self, answer: Answer) -> dict[str, Any]:
        return {"prompt_token_ids": list(answer.prompt)} if self._with_ids else {}

    def _stats(self, answers: Sequence[Answer]) -> dict[str, Any]:
        return {"speculation_stats": asdict(_added_up(answers)[1])} if self._with_stats else {}

    def _no_usage(self) -> dict[str, Any]:
        """With include_usage, every other event says that it has none."""
        return {"usage": None} if self._with_usage else {}


class ChatShape(_Base):
    """chat.completion and chat.completion.chunk."""

    prefix = "chatcmpl"

    def whole(self, answers: Sequence[Answer]) -> r.ChatCompletion:
        """Body of an answer that is no stream."""
        answer = answers[0]
        choice: r.ChatChoice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(answer.text)},
            "logprobs": None,
            "finish_reason": answer.finish_reason,
            **self._ids(answer.token_ids),  # type: ignore[typeddict-item]
        }
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": answer.model,
            "choices": [choice],
            "usage": usage_body(answers),
            "seed": answer.seed,
            **self._prompt_ids(answer),  # type: ignore[typeddict-item]
            **self._stats(answers),
        }

    def opening(self, answer: Answer) -> r.ChatChunk:
        """The role."""
        chunk = self._chunk(answer, {"role": "assistant", "content": ""}, None)
        chunk["seed"] = answer.seed
        if self._with_ids:
            chunk["prompt_token_ids"] = list(answer.prompt)
        return chunk

    def delta(self, answer: Answer, delta: GenerationDelta) -> r.ChatChunk:
        """Event with new text."""
        return self._chunk(answer, {"content": delta.text}, None, delta.token_ids)

    def closing(self, answer: Answer, answers: Sequence[Answer]) -> r.ChatChunk:
        """The finish reason."""
        chunk = self._chunk(answer, {}, answer.finish_reason)
        return {**chunk, **self._stats(answers)}  # type: ignore[typeddict-item]

    def usage(self, answers: Sequence[Answer]) -> r.ChatChunk:
        """Event with the usage of the whole stream."""
        chunk = self._chunk(answers[0], {}, None)
        return {**chunk, "choices": [], "usage": usage_body(answers)}

    def _chunk(
        self, answer: Answer, delta: r.AnswerDelta, finish_reason: str | None, token_ids: Sequence[int] = ()
    ) -> r.ChatChunk:
        choice: r.ChatChunkChoice = {
            "index": answer.index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
            **self._ids(token_ids),  # type: ignore[typeddict-item]
        }
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": answer.model,
            "choices": [choice],
            **self._no_usage(),  # type: ignore[typeddict-item]
        }


class CompletionShape(_Base):
    """text_completion, whole and in events."""

    prefix = "cmpl"

    def __init__(self, request: ChatRequest | CompletionRequest) -> None:
        super().__init__(request)
        self._opened: set[int] = set()

    def whole(self, answers: Sequence[Answer]) -> r.Completion:
        """Body of an answer that is no stream."""
        choices = [
            self._choice(answer, "".join(answer.text), answer.finish_reason, answer.token_ids)
            | self._prompt_ids(answer)
            for answer in answers
        ]
        body = self._body(answers[0].model, choices)
        return {
            **body,
            "usage": usage_body(answers),
            "seed": answers[0].seed,
            **self._stats(answers),  # type: ignore[typeddict-item]
        }

    def opening(self, answer: Answer) -> None:
        """Completions begin with their text."""

    def delta(self, answer: Answer, delta: GenerationDelta) -> r.Completion:
        """Event with new text."""
        return self._event(answer, delta.text, None, delta.token_ids)

    def closing(self, answer: Answer, answers: Sequence[Answer]) -> r.Completion:
        """The finish reason."""
        event = self._event(answer, "", answer.finish_reason, ())
        return {**event, **self._stats(answers)}  # type: ignore[typeddict-item]

    def usage(self, answers: Sequence[Answer]) -> r.Completion:
        """Event with the usage of the whole stream."""
        return {**self._body(answers[0].model, []), "usage": usage_body(answers)}

    def _event(
        self, answer: Answer, text: str, finish_reason: str | None, token_ids: Sequence[int]
    ) -> r.Completion:
        choice = self._choice(answer, text, finish_reason, token_ids)
        first = answer.index not in self._opened
        if first:
            self._opened.add(answer.index)
            choice |= self._prompt_ids(answer)
        event = self._body(answer.model, [choice])
        seed = {"seed": answer.seed} if first else {}
        return {**event, **self._no_usage(), **seed}  # type: ignore[typeddict-item]

    def _choice(
        self, answer: Answer, text: str, finish_reason: str | None, token_ids: Sequence[int]
    ) -> dict[str, Any]:
        return {
            "index": answer.index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            **self._ids(token_ids),
        }

    def _body(self, model: str, choices: list[dict[str, Any]]) -> r.Completion:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": model,
            "choices": choices,  # type: ignore[typeddict-item]
        }


def usage_body(answers: Sequence[Answer]) -> r.UsageBody:
    """Counts of a whole request."""
    usage, stats = _added_up(answers)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.accepted_tokens,
            "rejected_prediction_tokens": max(stats.draft_tokens - stats.accepted_tokens, 0),
        },
    }


def model_card(info: VerifierInfo, created: int) -> r.ModelCard:
    """A model as /v1/models shows it."""
    return {
        "id": info.model.model_name,
        "object": "model",
        "created": created,
        "owned_by": "outrider",
        "max_model_len": info.model.context_length or None,
    }


def _added_up(answers: Sequence[Answer]) -> tuple[Usage, SpeculationStats]:
    usage, stats = Usage(), SpeculationStats()
    for finished in (answer.finished for answer in answers if answer.finished is not None):
        usage.prompt_tokens += finished.usage.prompt_tokens
        usage.completion_tokens += finished.usage.completion_tokens
        usage.cached_prompt_tokens += finished.usage.cached_prompt_tokens
        stats.rounds += finished.speculation.rounds
        stats.drafts += finished.speculation.drafts
        stats.draft_tokens += finished.speculation.draft_tokens
        stats.accepted_tokens += finished.speculation.accepted_tokens
        stats.run_ahead_hits += finished.speculation.run_ahead_hits
        stats.missed += finished.speculation.missed
        stats.drafter = finished.speculation.drafter
    return usage, stats
