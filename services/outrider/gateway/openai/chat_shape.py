"""chat.completion and chat.completion.chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.core.params import TokenLogprobs
from outrider.gateway.openai import responses as r
from outrider.gateway.openai.answers import Answer, Answers
from outrider.gateway.openai.called import CallWriter
from outrider.gateway.openai.counts import usage_body
from outrider.gateway.openai.requests import ChatRequest
from outrider.gateway.openai.shapes import BaseShape, Identity
from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import GenerationDelta, VerifierInfo


class ChatShape(BaseShape):
    """Fills the chat API's shapes."""

    def __init__(
        self,
        body: ChatRequest,
        answers: Answers,
        tokenizer: TextTokenizer,
        info: VerifierInfo,
        identity: Identity,
    ) -> None:
        super().__init__(body, answers, tokenizer, info, identity)
        self._top = body.top_alternatives
        tool_format = tokenizer.tool_format(body.chat_template) if body.tools else None
        self._calls = CallWriter(body.tool_plan(), tool_format, identity.id)

    def whole(self, answers: Sequence[Answer]) -> r.ChatCompletion:
        """Body of an answer that is no stream."""
        first = answers[0]
        return {
            "id": self._identity.id,
            "object": "chat.completion",
            "created": self._identity.created,
            "model": first.model,
            "choices": [self._choice(answer) for answer in answers],
            "usage": usage_body(answers),
            "seed": first.seed,
            **self._of_prompt(first),  # type: ignore[typeddict-item]
            **self._stats(answers),
        }

    def opening(self, answer: Answer) -> r.ChatChunk:
        """The role."""
        chunk = self._chunk(answer, {"role": "assistant", "content": ""}, None)
        return {**chunk, "seed": answer.seed, **self._of_prompt(answer)}  # type: ignore[typeddict-item]

    def delta(self, answer: Answer, delta: GenerationDelta) -> r.ChatChunk | None:
        """Event with new text or calls; None if nothing can be told yet."""
        news = self._calls.delta(answer, delta.text)
        if not news and not self._with_ids and self._top is None and not self._continuous_usage:
            return None
        told = {**self._ids(delta.token_ids), "logprobs": self._logprobs(delta.logprobs)}
        return self._chunk(answer, news, None, told)

    def closing(self, answer: Answer) -> r.ChatChunk:
        """The finish reason."""
        told = {**self._ids(()), **self._choice_stats(answer)}
        rest = self._calls.closing(answer)
        chunk = self._chunk(answer, rest, self._calls.finish_reason(answer), told)
        return {**chunk, **self._stats(self._answers.all)}  # type: ignore[typeddict-item]

    def usage(self) -> r.ChatChunk:
        """Event with the usage of the whole stream."""
        answers = self._answers.all
        chunk = self._chunk(answers[0], {}, None)
        return {**chunk, "choices": [], "usage": usage_body(answers)}

    def _choice(self, answer: Answer) -> r.ChatChoice:
        message = self._calls.message(answer)
        return {
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": self._calls.finish_reason(answer),
            **self._ids(answer.token_ids),  # type: ignore[typeddict-item]
            **self._choice_stats(answer),
        }

    def _chunk(
        self,
        answer: Answer,
        delta: r.AnswerDelta,
        finish_reason: str | None,
        told: dict[str, Any] | None = None,
    ) -> r.ChatChunk:
        choice: r.ChatChunkChoice = {
            "index": answer.index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
            **(self._ids(()) if told is None else told),  # type: ignore[typeddict-item]
        }
        return {
            "id": self._identity.id,
            "object": "chat.completion.chunk",
            "created": self._identity.created,
            "model": answer.model,
            "choices": [choice],
            **self._usage_field(),  # type: ignore[typeddict-item]
        }

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> r.ChatLogprobs | None:
        return None if self._top is None else self._writer.chat(entries, self._top)
