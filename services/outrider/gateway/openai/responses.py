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


class DrafterStatsBody(TypedDict):
    """Extension: what came of one drafter; `DrafterStats` of common.proto explains each."""

    name: str
    asked: int
    proposals: int
    missed: int
    draft_tokens: int
    accepted_tokens: int


class SpeculationStatsBody(TypedDict):
    """Extension: what speculation did; `SpeculationStats` of common.proto explains each."""

    rounds: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    run_ahead_hits: int
    missed: int
    drafter: str
    drafters: list[DrafterStatsBody]


class ChoiceStatsBody(TypedDict):
    """Extension, as in vLLM: what speculation did for one choice."""

    mean_acceptance_length: float  # tokens of a round that had a proposal, the one after it included
    draft_acceptance_rate: float
    acceptance_histogram: dict[str, int]  # draft tokens accepted -> rounds
    num_spec_steps: int  # rounds that had a proposal
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int  # most draft tokens that a round may have


class TopLogprob(TypedDict):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """A generated token with its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of an answer's tokens."""

    content: list[ChatLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a completion's tokens, one entry of each list for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]  # null: the prompt's first token
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # characters before the token


class PromptLogprob(TypedDict):
    """Extension, as in vLLM: a token that could stand at a position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptPosition = dict[str, PromptLogprob]
"""By token id: the prompt's own token and the most probable ones."""


class CalledFunctionBody(TypedDict):
    """What is called."""

    name: str
    arguments: str  # JSON


class ToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunctionBody


class CalledFunctionDelta(TypedDict):
    """What is new of it."""

    name: NotRequired[str]  # in a call's first delta
    arguments: str


class ToolCallDelta(TypedDict):
    """What is new of a call."""

    index: int
    id: NotRequired[str]  # in its first delta
    type: NotRequired[Literal["function"]]  # in its first delta
    function: CalledFunctionDelta


class AnswerMessage(TypedDict):
    """The assistant's answer."""

    role: Literal["assistant"]
    content: str | None  # null: calls alone
    tool_calls: NotRequired[list[ToolCall]]


class AnswerDelta(TypedDict):
    """What is new of the assistant's answer."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatChoice(TypedDict):
    """An answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    token_ids: NotRequired[list[int]]  # extension
    speculative_decoding_stats: NotRequired[ChoiceStatsBody | None]  # extension


class ChatChunkChoice(TypedDict):
    """What is new of an answer."""

    index: int
    delta: AnswerDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]  # extension
    speculative_decoding_stats: NotRequired[ChoiceStatsBody | None]  # extension, with the finish reason


class CompletionChoice(TypedDict):
    """A completion, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]  # extension
    prompt_token_ids: NotRequired[list[int]]  # extension; in a stream, in the choice's first event
    prompt_logprobs: NotRequired[list[PromptPosition | None]]  # extension, where prompt_token_ids would be
    speculative_decoding_stats: NotRequired[ChoiceStatsBody | None]  # extension, with the finish reason


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
    prompt_logprobs: NotRequired[list[PromptPosition | None]]  # extension
    speculation_stats: NotRequired[SpeculationStatsBody]  # extension


class ChatChunk(TypedDict):
    """One event of an answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[UsageBody | None]
    seed: NotRequired[int]  # extension, in each choice's first event
    prompt_token_ids: NotRequired[list[int]]  # extension, in each choice's first event
    prompt_logprobs: NotRequired[list[PromptPosition | None]]  # extension, in each choice's first event
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
