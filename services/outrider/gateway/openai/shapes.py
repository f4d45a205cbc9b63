"""What answers of chat and completions have in common; `chat_shape` and `completion_shape` fill the rest."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outrider.gateway.openai import responses as r
from outrider.gateway.openai.answers import Answer, Answers
from outrider.gateway.openai.counts import choice_stats_body, stats_body, usage_body
from outrider.gateway.openai.generation_body import GenerationBody
from outrider.gateway.openai.logprobs import LogprobWriter
from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import GenerationDelta, VerifierInfo


class Shape(Protocol):
    """What differs between chat and completions."""

    def whole(self, answers: Sequence[Answer]) -> Any:
        """Body of an answer that is no stream."""

    def opening(self, answer: Answer) -> Any | None:
        """First event of a choice, if there is one before its text."""

    def delta(self, answer: Answer, delta: GenerationDelta) -> Any | None:
        """Event with new text, if there is anything to tell."""

    def closing(self, answer: Answer) -> Any:
        """Last event of a choice."""

    def usage(self) -> Any:
        """Event with the usage of the whole stream."""


@dataclass(slots=True)
class Identity:
    """What an answer is known by: the same in all of its events, also once it is resumed."""

    id: str
    created: int  # seconds since 1970

    @classmethod
    def new(cls, prefix: str) -> Identity:
        """Of a request that came now."""
        return cls(f"{prefix}-{uuid.uuid4().hex}", int(time.time()))


class BaseShape:
    """The fields that both APIs have."""

    def __init__(
        self,
        body: GenerationBody,
        answers: Answers,
        tokenizer: TextTokenizer,
        info: VerifierInfo,
        identity: Identity,
    ) -> None:
        """`answers` grow while the request runs; `identity` is complete once they begin."""
        self._identity = identity
        self._answers = answers
        self._tokenizer = tokenizer
        self._with_ids = bool(body.return_token_ids)
        self._with_stats = body.wants_stats
        self._with_usage = body.include_usage
        self._continuous_usage = body.continuous_usage
        self._prompt_top = body.prompt_logprobs
        asked = None if body.speculation is None else body.speculation.max_draft_tokens
        self._most_drafted = info.default_draft_length if asked is None else asked
        self._skip_special_tokens = body.skip_special_tokens is not False
        self._writer = LogprobWriter(
            tokenizer,
            as_ids=bool(body.return_tokens_as_token_ids),
            skip_special_tokens=self._skip_special_tokens,
        )

    def _ids(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(token_ids)} if self._with_ids else {}

    def _of_prompt(self, answer: Answer) -> dict[str, Any]:
        """What is told of the prompt."""
        told: dict[str, Any] = {"prompt_token_ids": list(answer.prompt)} if self._with_ids else {}
        if self._prompt_top is not None:
            told["prompt_logprobs"] = self._writer.prompt(answer.prompt_logprobs, self._prompt_top)
        return told

    def _stats(self, answers: Sequence[Answer]) -> dict[str, Any]:
        return {"speculation_stats": stats_body(answers)} if self._with_stats else {}

    def _choice_stats(self, answer: Answer) -> dict[str, Any]:
        if not self._with_stats:
            return {}
        return {"speculative_decoding_stats": choice_stats_body(answer, self._most_drafted)}

    def _usage_field(self) -> dict[str, Any]:
        """With include_usage, every event but the last says that it has none, or what it is so far."""
        if self._continuous_usage:
            return {"usage": usage_body(self._answers.all)}
        return {"usage": None} if self._with_usage else {}


def model_card(info: VerifierInfo, created: int) -> r.ModelCard:
    """A model as /v1/models shows it."""
    return {
        "id": info.model.model_name,
        "object": "model",
        "created": created,
        "owned_by": "outrider",
        "max_model_len": info.model.context_length or None,
    }
