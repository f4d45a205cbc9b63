"""Shapes of what clients get; `shapes` fills them."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class PromptTokensDetails(TypedDict):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """Draft tokens of the verified rounds, in the fields that OpenAI has for predicted outputs."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageBody(TypedDict):
    """Counts; completion tokens are those delivered."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class SpeculationStatsBody(TypedDict):
    """Extension: what speculation did; `SpeculationStats` of common.proto explains each."""

    rounds: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    run_ahead_hits: int
    missed: int
    drafter: str


class AnswerMessage(TypedDict):
    """The assistant's answer."""

    role: Literal["assistant"]
    content: str


class AnswerDelta(TypedDict):
    """What is new of the assistant's answer."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChoice(TypedDict):
    """An answer."""

    index: int
    message: AnswerMessage
    logprobs: None
    finish_reason: str
    token_ids: NotRequired[list[int]]  # extension


class ChatChunkChoice(TypedDict):
    """What is new of an answer."""

    index: int
    delta: AnswerDelta
    logprobs: None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]  # extension


class CompletionChoice(TypedDict):
    """A completion, or what is new of it."""

    index: int
    text: str
    logprobs: None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]  # extension
    prompt_token_ids: NotRequired[list[int]]  # extension


class ChatCompletion(TypedDict):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    seed: int  # extension: the seed in force
    prompt_token_ids: NotRequired[list[int]]  # extension
    speculation_stats: NotRequired[SpeculationStatsBody]  # extension


class ChatChunk(TypedDict):
    """One event of an answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[UsageBody | None]
    seed: NotRequired[int]  # extension, in the first event
    prompt_token_ids: NotRequired[list[int]]  # extension, in the first event
    speculation_stats: NotRequired[SpeculationStatsBody]  # extension, with the finish reason


class Completion(TypedDict):
    """Whole completions, or one event of them."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[UsageBody | None]
    seed: NotRequired[int]  # extension; in a stream, in the first event of each choice
    speculation_stats: NotRequired[SpeculationStatsBody]  # extension, with the last finish reason


class ModelCard(TypedDict):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None  # extension: tokens of prompt and answer together


class ModelList(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[ModelCard]


class ErrorDetail(TypedDict):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """Body of every answer that is not 2xx."""

    error: ErrorDetail


class Health(TypedDict):
    """Whether requests are answered, and what does not work as it should."""

    status: Literal["ok", "degraded", "unavailable"]
    reasons: list[str]
