"""Bodies that clients send, checked and translated. Bounds of values are core/limits's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from outrider.core import limits
from outrider.core.errors import InvalidRequestError
from outrider.core.params import Grammar, LogprobParams
from outrider.gateway.admission import PromptOptions
from outrider.gateway.openai import unsupported
from outrider.gateway.openai.generation_body import MOST_TOKENS, GenerationBody, check_max_tokens
from outrider.gateway.openai.messages import MAX_MESSAGES, Message, TemplateFields
from outrider.gateway.openai.parameters import (
    TOKEN_ID,
    Schema,
    listed,
    noted,
)
from outrider.gateway.openai.tools import ToolFields
from outrider.wire.messages import PromptInput

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; chats go on to the end of the context."""
MAX_PROMPTS = 64
"""Prompts in one completions request."""

_ONE_PROMPT: list[Schema] = [{"type": "string"}, listed(TOKEN_ID, 2**20, least=1)]
_PROMPT: Schema = {"anyOf": [*_ONE_PROMPT, listed({"anyOf": _ONE_PROMPT}, MAX_PROMPTS, least=1)]}


def _prompts(value: Any) -> Any:
    """A string, ids, or a list of either, as a list of prompts."""
    if isinstance(value, str) or (isinstance(value, list) and value and _is_ids(value)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a string, a list of token ids, or a list of either, and not empty")
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"must hold at most {MAX_PROMPTS} prompts, got {len(value)}")
    for index, prompt in enumerate(value):
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and prompt and _is_ids(prompt)):
            raise ValueError(f"prompt {index} must be a string or a list of token ids, and not empty")
    return value


def _is_ids(value: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in value)


class ChatRequest(ToolFields, TemplateFields, GenerationBody):
    """Body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(
        None, description="OpenAI's newer name of max_tokens", json_schema_extra=noted(1, MOST_TOKENS)
    )
    logprobs: bool | None = Field(None, description="log-probabilities of the answer's tokens")
    top_logprobs: int | None = Field(
        None,
        description="with logprobs: so many most probable tokens at each position",
        json_schema_extra=noted(0, limits.MAX_LOGPROBS),
    )

    @property
    def asked_tokens(self) -> int:
        """Most tokens of one answer; 0: the rest of the context."""
        return self.max_completion_tokens or self.max_tokens or 0

    @property
    def top_alternatives(self) -> int | None:
        """Alternatives told at each generated token; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def _inputs(self) -> list[PromptInput]:
        reads_calls = self.tool_plan().mode == "auto"
        return [self.conversation(self.messages, self.shown_tools(), reads_calls=reads_calls)]

    def structure(self) -> tuple[Grammar, str] | None:
        """The grammar and the field that asks for it; None if the answer is free.

        Raises:
            InvalidRequestError: an option that is not supported, or more than one grammar.
        """
        asked, plan = super().structure(), self.tool_plan()
        if asked is not None and plan.mode != "none":
            raise InvalidRequestError(
                f'{asked[1]} and tools cannot be combined: set tool_choice to "none", or leave one out',
                field=asked[1],
            )
        forced = self.tool_grammar(plan)
        return asked if forced is None else (forced, "tools")

    def check(self) -> None:
        """Raises InvalidRequestError: a parameter that is not supported, or two that contradict."""
        super().check()
        if self.max_completion_tokens is not None:
            check_max_tokens("max_completion_tokens", self.max_completion_tokens, 1)
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true", field="top_logprobs")
        unsupported.refuse(self.model_extra, unsupported.CHAT)


class CompletionRequest(GenerationBody):
    """Body of /v1/completions."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts, json_schema_input_type=Any)] = Field(
        json_schema_extra=_PROMPT
    )
    max_tokens: int | None = Field(
        None, description="0: nothing, with echo", json_schema_extra=noted(0, MOST_TOKENS)
    )
    logprobs: int | None = Field(
        None,
        description="log-probabilities of the tokens, with so many alternatives",
        json_schema_extra=noted(0, limits.MAX_LOGPROBS),
    )
    best_of: int | None = Field(
        None,
        description="generate so many, return the n most probable by token",
        json_schema_extra=noted(1, limits.MAX_COMPLETIONS),
    )
    echo: bool | None = Field(None, description="the prompt goes before the completion")

    @property
    def candidates(self) -> int:
        """Answers to each prompt that are generated."""
        return self.choices if self.best_of is None else self.best_of

    @property
    def prompts(self) -> int:
        """How many prompts there are."""
        return len(self.prompt)

    @property
    def only_echo(self) -> bool:
        """Whether nothing but the prompt is wanted: the one token that is generated is dropped."""
        return self.max_tokens == 0

    @property
    def asked_tokens(self) -> int:
        """Most tokens of one answer."""
        return COMPLETION_MAX_TOKENS if self.max_tokens is None else max(self.max_tokens, 1)

    @property
    def top_alternatives(self) -> int | None:
        """Alternatives told at each generated token; None: no log-probabilities.

        The best of several are found by them, told or not.
        """
        return 0 if self.logprobs is None and self.candidates > self.choices else self.logprobs

    @property
    def prompt_options(self) -> PromptOptions:
        """How a prompt becomes tokens; of a default length, as much is taken as fits."""
        return PromptOptions(
            self.add_special_tokens, self.truncate_prompt_tokens, clamp_max_tokens=self.max_tokens is None
        )

    def _inputs(self) -> list[PromptInput]:
        return [prompt if isinstance(prompt, str) else tuple(prompt) for prompt in self.prompt]

    @property
    def least_tokens(self) -> int:
        """Smallest max_tokens."""
        return 0 if self.echo else 1

    def told(self, top: int | None) -> LogprobParams:
        """As core has it; an echo tells of the prompt's tokens too."""
        wanted = [
            top for top in (self.prompt_logprobs, self.logprobs if self.echo else None) if top is not None
        ]
        return LogprobParams(top, max(wanted, default=None))

    def check(self) -> None:
        """Raises InvalidRequestError: a parameter that is not supported, or two that contradict."""
        super().check()
        limits.check_completions(self.choices, self.best_of)
        if self.candidates > self.choices and self.streams:
            raise InvalidRequestError("best_of above n cannot be streamed", field="best_of")
        unsupported.refuse(self.model_extra, unsupported.COMPLETION)
