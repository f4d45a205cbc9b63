"""What the bodies of chat and completions share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from pydantic import Field

from outrider.core import limits
from outrider.core.errors import InvalidRequestError
from outrider.core.params import Grammar
from outrider.gateway.admission import PromptOptions
from outrider.gateway.openai.parameters import (
    PromptFields,
    SamplingFields,
    Speculation,
    StopFields,
    StreamOptions,
    noted,
)
from outrider.gateway.openai.structured import StructuredFields
from outrider.wire.messages import GenerationRequest, PromptInput

MOST_TOKENS = 2**31 - 1


class GenerationBody(SamplingFields, StopFields, PromptFields, StructuredFields):
    """What chat and completions share."""

    model: str | None = Field(None, description="empty: the only model served")
    max_tokens: int | None = Field(None, json_schema_extra=noted(1, MOST_TOKENS))
    n: int | None = Field(
        None, description="answers to each prompt", json_schema_extra=noted(1, limits.MAX_COMPLETIONS)
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="accepted, not used")
    cache_salt: str | None = Field(
        None,
        description="extension: what was kept of requests with another salt is not used for this one",
        json_schema_extra={"minLength": 1, "maxLength": limits.MAX_CACHE_SALT_CHARS},
    )
    speculation: Speculation | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream."""
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every event of a stream has the usage so far."""
        return (
            self.include_usage
            and self.stream_options is not None
            and bool(self.stream_options.continuous_usage_stats)
        )

    @property
    def tells_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of the prompt are told."""
        return self.told(None).prompt_top is not None

    @property
    def only_echo(self) -> bool:
        """Whether nothing but the prompt is wanted: the one token that is generated is dropped."""
        return False

    @property
    def wants_stats(self) -> bool:
        """Whether statistics of speculation are told."""
        return self.speculation is not None and bool(self.speculation.stats)

    @property
    def choices(self) -> int:
        """Answers to each prompt that are returned."""
        return 1 if self.n is None else self.n

    @property
    def candidates(self) -> int:
        """Answers to each prompt that are generated."""
        return self.choices

    @property
    def prompts(self) -> int:
        """How many prompts there are."""
        return 1

    @property
    def least_tokens(self) -> int:
        """Smallest max_tokens."""
        return 1

    @property
    @abstractmethod
    def asked_tokens(self) -> int:
        """Most tokens of one answer; 0: the rest of the context."""

    @property
    @abstractmethod
    def top_alternatives(self) -> int | None:
        """Alternatives told at each generated token; None: no log-probabilities."""

    @property
    def prompt_options(self) -> PromptOptions:
        """How a prompt becomes tokens."""
        return PromptOptions(self.add_special_tokens, self.truncate_prompt_tokens)

    @property
    def fields(self) -> dict[str, str]:
        """Where core's name of a field is not this body's."""
        structure = self.structure()
        return {"grammar": structure[1]} if structure else {}

    def generations(self) -> list[GenerationRequest]:
        """What to generate, once checked: `candidates` for each prompt, side by side.

        Candidate i is drawn with the seed plus i, as vLLM does.

        Raises:
            InvalidRequestError: a parameter that is not supported, or two that contradict.
        """
        seed, structure = self.seed_in_force(), self.structure()
        inputs = self._inputs()
        first = self._generation(inputs[0], seed, structure[0] if structure else None)
        samplings = [
            replace(first.sampling, seed=(seed + candidate) % 2**64) for candidate in range(self.candidates)
        ]
        return [
            replace(first, input=prompt, sampling=sampling) for prompt in inputs for sampling in samplings
        ]

    @abstractmethod
    def _inputs(self) -> list[PromptInput]:
        """The prompts, as core takes them."""

    def check(self) -> None:
        """Raises InvalidRequestError: a parameter that is not supported, or two that contradict."""
        limits.check_completions(self.choices)
        self.check_prompt_fields()
        if self.cache_salt == "":
            raise InvalidRequestError("cache_salt must not be empty", field="cache_salt")
        limits.check_cache_salt(self.cache_salt or "")
        if self.max_tokens is not None:
            check_max_tokens("max_tokens", self.max_tokens, self.least_tokens)
        if self.stream_options is not None and not self.streams:
            raise InvalidRequestError("stream_options needs stream to be true", field="stream_options")

    def _generation(self, prompt: PromptInput, seed: int, grammar: Grammar | None) -> GenerationRequest:
        return GenerationRequest(
            input=prompt,
            sampling=self.sampling(seed, grammar),
            stop=self.stops(self.asked_tokens),
            speculation=(self.speculation or Speculation()).params(),
            model=self.model or "",
            logprobs=self.told(self.top_alternatives),
            bad_words=tuple(self.bad_words or ()),
            skip_special_tokens=self.skip_special_tokens is not False,
            cache_salt=self.cache_salt or "",
        )


def check_max_tokens(field: str, max_tokens: int, least: int) -> None:
    """Raises InvalidRequestError: it is below `least`."""
    if max_tokens < least:
        raise InvalidRequestError(
            f"{field} must be at least {least}, got {limits.quoted(max_tokens)}", field=field
        )
