"""text_completion, whole and in events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.core.params import TokenLogprobs
from outrider.gateway.openai import responses as r
from outrider.gateway.openai.answers import Answer, Answers
from outrider.gateway.openai.counts import usage_body
from outrider.gateway.openai.logprobs import TextOffsets
from outrider.gateway.openai.requests import CompletionRequest
from outrider.gateway.openai.shapes import BaseShape, Identity
from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import GenerationDelta, VerifierInfo


class CompletionShape(BaseShape):
    """Fills the completions API's shapes."""

    def __init__(
        self,
        body: CompletionRequest,
        answers: Answers,
        tokenizer: TextTokenizer,
        info: VerifierInfo,
        identity: Identity,
    ) -> None:
        super().__init__(body, answers, tokenizer, info, identity)
        self._prompts = body.prompt
        self._whole_prompts = body.truncate_prompt_tokens is None
        self._echo = bool(body.echo)
        self._only_echo = body.only_echo
        self._top = body.logprobs
        self._offsets: dict[int, TextOffsets] = {}

    def whole(self, answers: Sequence[Answer]) -> r.Completion:
        """Body of an answer that is no stream."""
        choices = [self._whole_choice(answer) for answer in answers]
        return {
            **self._body(answers[0].model, choices),
            "usage": usage_body(answers),
            "seed": answers[0].seed,
            **self._stats(answers),  # type: ignore[typeddict-item]
        }

    def opening(self, answer: Answer) -> r.Completion | None:
        """The prompt, if it is echoed; otherwise completions begin with their text."""
        if not self._echo:
            return None
        told = {"logprobs": self._prompt_logprobs(answer), **self._ids(())}
        return self._event(answer, self._prompt_text(answer), None, told)

    def delta(self, answer: Answer, delta: GenerationDelta) -> r.Completion | None:
        """Event with new text; None if only the prompt is wanted."""
        if self._only_echo:
            return None
        told = {"logprobs": self._logprobs(answer, delta.token_ids, delta.logprobs)}
        return self._event(answer, delta.text, None, told | self._ids(delta.token_ids))

    def closing(self, answer: Answer) -> r.Completion:
        """The finish reason."""
        told = {**self._ids(()), **self._choice_stats(answer)}
        event = self._event(answer, "", answer.finish_reason, told)
        return {**event, **self._stats(self._answers.all)}  # type: ignore[typeddict-item]

    def usage(self) -> r.Completion:
        """Event with the usage of the whole stream."""
        answers = self._answers.all
        return {**self._body(answers[0].model, []), "usage": usage_body(answers)}

    def _whole_choice(self, answer: Answer) -> dict[str, Any]:
        before = self._prompt_logprobs(answer) if self._echo else None
        own = self._logprobs(answer, answer.token_ids, answer.logprobs)
        return {
            "index": answer.index,
            "text": (self._prompt_text(answer) if self._echo else "") + "".join(answer.text),
            "logprobs": own if before is None or own is None else _joined(before, own),
            "finish_reason": answer.finish_reason,
            **self._ids(answer.token_ids),
            **self._of_prompt(answer),
            **self._choice_stats(answer),
        }

    def _event(
        self, answer: Answer, text: str, finish_reason: str | None, told: dict[str, Any]
    ) -> r.Completion:
        choice = {
            "index": answer.index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            **told,
        }
        first = not answer.opened
        if first:
            answer.opened = True
            choice |= self._of_prompt(answer)
        event = self._body(answer.model, [choice])
        seed = {"seed": answer.seed} if first else {}
        return {**event, **self._usage_field(), **seed}  # type: ignore[typeddict-item]

    def _body(self, model: str, choices: list[dict[str, Any]]) -> r.Completion:
        return {
            "id": self._identity.id,
            "object": "text_completion",
            "created": self._identity.created,
            "model": model,
            "choices": choices,  # type: ignore[typeddict-item]
        }

    def _prompt_text(self, answer: Answer) -> str:
        given = self._prompts[answer.prompt_index]
        if isinstance(given, str) and self._whole_prompts:
            return given
        detokenizer = self._tokenizer.detokenizer(skip_special_tokens=self._skip_special_tokens)
        pieces = [piece for token_id in answer.prompt for piece in detokenizer.push(token_id)]
        return "".join(piece.text for piece in [*pieces, *detokenizer.flush()])

    def _prompt_logprobs(self, answer: Answer) -> r.CompletionLogprobs | None:
        if self._top is None:
            return None
        entries = [None, *answer.prompt_logprobs]
        return self._writer.completion(answer.prompt, entries, self._top, offsets=TextOffsets())

    def _logprobs(
        self, answer: Answer, token_ids: Sequence[int], entries: Sequence[TokenLogprobs]
    ) -> r.CompletionLogprobs | None:
        if self._top is None:
            return None
        offsets = self._offsets.get(answer.index)
        if offsets is None:
            start = len(self._prompt_text(answer)) if self._echo else 0
            offsets = self._offsets[answer.index] = TextOffsets(start)
        return self._writer.completion(token_ids, entries, self._top, offsets=offsets)


def _joined(first: r.CompletionLogprobs, second: r.CompletionLogprobs) -> r.CompletionLogprobs:
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }
