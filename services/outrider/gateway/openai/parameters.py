"""Fields that chat and completions share, and what core types become of them.

Types are checked here, bounds of values by core/limits: where a field notes its bounds, that is for the
OpenAPI page alone. `null` means the default everywhere.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from outrider.core import limits
from outrider.core.errors import InvalidRequestError
from outrider.core.params import (
    Acceptance,
    Grammar,
    LogitEdits,
    LogprobParams,
    SamplingParams,
    SpeculationParams,
)
from outrider.gateway.generations import draw_seed
from outrider.wire.messages import StopRequest

Schema = dict[str, Any]


def noted(low: float | None = None, high: float | None = None, **more: Any) -> Schema:
    """Bounds for the OpenAPI page; `more` are further keywords of JSON schema."""
    bounds = {"minimum": low, "maximum": high}
    return {name: bound for name, bound in bounds.items() if bound is not None} | more


def listed(item: Schema, most: int, *, least: int = 0) -> Schema:
    """JSON schema of a list of `item`."""
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": limits.MAX_TOKEN_ID}
_WORD: Schema = {"type": "string", "minLength": 1}
_NUMBER: Schema = {"type": "number"}
_NULL: Schema = {"type": "null"}


def _strings(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _bias(value: Any) -> Any:
    """Ids as JSON spells them: keys of an object."""
    if not isinstance(value, dict):
        return value
    for key in value:
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and str(int(key)) == key):
            raise ValueError(f"must map token ids to numbers, {limits.quoted(key)} is no token id")
    return {int(key): added for key, added in value.items()}


class Body(BaseModel):
    """JSON types are strict; fields that nobody knows are kept, for `unsupported` to look at."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = Field(None, description="one more event at the end, with the usage")
    continuous_usage_stats: bool | None = Field(
        None, description="extension, with include_usage: the usage so far in every event"
    )


class Speculation(Body):
    """Extension: what a request says about speculation. With "coupled" it changes speed, never output."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool | None = Field(None, description="false: no drafter ever hears of this request")
    max_draft_tokens: int | None = Field(
        None,
        description="most draft tokens a round; 0 as enabled=false",
        json_schema_extra=noted(0, limits.MAX_DRAFT_TOKENS),
    )
    drafter: str | None = Field(
        None,
        description="name of a drafter, a+b, fused (all) or off; empty: the server's default",
        json_schema_extra=noted(maxLength=limits.MAX_DRAFTER_NAME_CHARS),
    )
    acceptance: Literal["coupled", "token", "block"] | None = Field(
        None,
        description='how draft tokens are accepted; "token" and "block" give another output of the same law',
    )
    stats: bool | None = Field(
        None, description="return `speculation_stats` and each choice's `speculative_decoding_stats`"
    )

    def params(self) -> SpeculationParams:
        """As core has it."""
        return SpeculationParams(
            enabled=self.enabled is not False,
            max_draft_tokens=self.max_draft_tokens,
            drafter=self.drafter or "",
            acceptance=Acceptance(self.acceptance or "coupled"),
        )


class SamplingFields(Body):
    """How tokens are drawn."""

    temperature: float | None = Field(
        None,
        description="0: greedy",
        json_schema_extra={
            "anyOf": [{"const": 0}, _NUMBER | noted(limits.MIN_TEMPERATURE, limits.MAX_TEMPERATURE), _NULL]
        },
    )
    top_p: float | None = Field(None, json_schema_extra=noted(high=1, exclusiveMinimum=0))
    top_k: int | None = Field(
        None, ge=-1, description="extension; 0 or -1: all", json_schema_extra=noted(high=limits.MAX_TOP_K)
    )
    min_p: float | None = Field(None, description="extension", json_schema_extra=noted(0, 1))
    typical_p: float | None = Field(
        None,
        description="extension: locally typical sampling",
        json_schema_extra=noted(high=1, exclusiveMinimum=0),
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**64, description="unset: drawn, and returned as `seed`")
    presence_penalty: float | None = Field(
        None, json_schema_extra=noted(-limits.MAX_PENALTY, limits.MAX_PENALTY)
    )
    frequency_penalty: float | None = Field(
        None, json_schema_extra=noted(-limits.MAX_PENALTY, limits.MAX_PENALTY)
    )
    repetition_penalty: float | None = Field(
        None,
        description="extension",
        json_schema_extra=noted(limits.MIN_REPETITION_PENALTY, limits.MAX_REPETITION_PENALTY),
    )
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(_bias, json_schema_input_type=Any)] = (
        Field(
            None,
            description="token ids (as strings) and what is added to their logits",
            json_schema_extra={
                "anyOf": [
                    {
                        "type": "object",
                        "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"},
                        "additionalProperties": noted(
                            -limits.MAX_LOGIT_BIAS, limits.MAX_LOGIT_BIAS, type="number"
                        ),
                        "maxProperties": limits.MAX_LOGIT_BIAS_ENTRIES,
                    },
                    _NULL,
                ]
            },
        )
    )
    allowed_token_ids: list[int] | None = Field(
        None,
        min_length=1,
        description="extension: only these are generated",
        json_schema_extra={"anyOf": [listed(TOKEN_ID, limits.MAX_ALLOWED_TOKEN_IDS, least=1), _NULL]},
    )
    bad_words: list[str] | None = Field(
        None,
        description="extension: these are not generated, neither at the start of a text nor after a space",
        json_schema_extra={
            "anyOf": [
                listed(_WORD | {"maxLength": limits.MAX_BAD_WORD_CHARS}, limits.MAX_BAD_WORDS),
                _NULL,
            ]
        },
    )
    min_tokens: int | None = Field(
        None, description="extension: no end before so many tokens", json_schema_extra=noted(0, 2**31 - 1)
    )

    def seed_in_force(self) -> int:
        """OpenAI's seeds are signed; noise is keyed by the same 64 bits without a sign."""
        return draw_seed() if self.seed is None else self.seed % 2**64

    def sampling(self, seed: int, grammar: Grammar | None) -> SamplingParams:
        """As core has it; `bad_words` are the gateway's to turn into token ids."""
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            seed=seed,
            typical_p=1.0 if self.typical_p is None else self.typical_p,
            edits=LogitEdits(
                grammar=grammar,
                allowed_token_ids=tuple(self.allowed_token_ids or ()),
                min_tokens=self.min_tokens or 0,
                logit_bias=tuple((self.logit_bias or {}).items()),
                repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
                frequency_penalty=self.frequency_penalty or 0.0,
                presence_penalty=self.presence_penalty or 0.0,
            ),
        )


class StopFields(Body):
    """When an answer ends, and what of it is text."""

    stop: Annotated[list[str] | None, BeforeValidator(_strings, json_schema_input_type=Any)] = Field(
        None,
        json_schema_extra={
            "anyOf": [
                _WORD | {"maxLength": limits.MAX_STOP_STRING_CHARS},
                listed(_WORD | {"maxLength": limits.MAX_STOP_STRING_CHARS}, limits.MAX_STOP_STRINGS),
                _NULL,
            ]
        },
    )
    stop_token_ids: list[int] | None = Field(
        None,
        description="extension",
        json_schema_extra={"anyOf": [listed(TOKEN_ID, limits.MAX_STOP_TOKEN_IDS), _NULL]},
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="extension: deliver the stop string or token too"
    )
    ignore_eos: bool | None = Field(None, description="extension: go on past the model's end of sequence")
    skip_special_tokens: bool | None = Field(
        None, description="extension; false: special tokens are part of the text"
    )

    def stops(self, max_tokens: int) -> StopRequest:
        """As the gateway has it; 0 tokens: up to the end of the context."""
        return StopRequest(
            max_tokens,
            frozenset(self.stop_token_ids or ()),
            tuple(self.stop or ()),
            bool(self.ignore_eos),
            bool(self.include_stop_str_in_output),
        )


class PromptFields(Body):
    """How a prompt becomes tokens, and what is told about them."""

    truncate_prompt_tokens: int | None = Field(
        None,
        description="extension: keep so many last tokens of the prompt; -1: as many as fit",
        json_schema_extra={"minimum": -1, "not": {"const": 0}},
    )
    add_special_tokens: bool | None = Field(
        None, description="extension: add those that the tokenizer adds; unset: to prompts, not to chats"
    )
    prompt_logprobs: int | None = Field(
        None,
        description="extension: log-probabilities of the prompt's tokens, with so many alternatives",
        json_schema_extra=noted(0, limits.MAX_LOGPROBS),
    )
    return_token_ids: bool | None = Field(None, description="extension: token ids of prompt and answer")
    return_tokens_as_token_ids: bool | None = Field(
        None, description='extension: tokens of log-probabilities as "token_id:5"'
    )

    def told(self, top: int | None) -> LogprobParams:
        """As core has it."""
        return LogprobParams(top, self.prompt_logprobs)

    def check_prompt_fields(self) -> None:
        """Raises InvalidRequestError: a length that means nothing."""
        kept = self.truncate_prompt_tokens
        if kept is not None and (kept < -1 or kept == 0):
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be -1 or at least 1, got {limits.quoted(kept)}",
                field="truncate_prompt_tokens",
            )
