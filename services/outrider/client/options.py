"""What a caller may ask for, by keyword, as one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

from outrider.core.errors import InvalidRequestError
from outrider.core.params import (
    Acceptance,
    Grammar,
    LogitEdits,
    LogprobParams,
    SamplingParams,
    SpeculationParams,
)
from outrider.wire import convert
from outrider.wire.messages import ChatTurn, GenerationRequest, PromptInput, StopRequest
from outrider.wire.v1 import generation_pb2 as pb

Prompt = str | Sequence[int] | Sequence[ChatTurn] | Sequence[Mapping[str, str]]
"""Plain text; token ids; or a conversation, also as `{"role": ..., "content": ...}`."""


class Options(TypedDict, total=False):
    """All that a request may say beside its prompt. What is left out has the gateway's default."""

    model: str
    max_tokens: int  # default: up to the end of the context
    temperature: float  # 0: greedy; default 1
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    seed: int  # default: drawn by the gateway and told in the result
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop: bool
    min_tokens: int
    grammar: Grammar
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str]
    logit_bias: Mapping[int, float]
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logprobs: int  # so many alternatives beside each token
    prompt_logprobs: int
    skip_special_tokens: bool
    cache_salt: str  # nothing that was kept of requests with another salt is used
    speculation: bool
    max_draft_tokens: int
    drafter: str
    acceptance: Acceptance | str


def request_message(prompt: Prompt, options: Options) -> pb.GenerateRequest:
    """The message that says all this. Bounds are the gateway's to check.

    Raises:
        InvalidRequestError: an option that there is not, or a value that no message can hold.
    """
    if unknown := options.keys() - Options.__annotations__.keys():
        name = min(unknown)
        raise InvalidRequestError(f"{name} is no option of a generation", field=name)
    try:
        message = convert.generation_request_to_proto(_request(prompt, options))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise InvalidRequestError(f"the request cannot be sent: {error}") from error
    if options.get("seed") is None:
        message.sampling.ClearField("seed")
    return message


def _request(prompt: Prompt, options: Options) -> GenerationRequest:
    stop = options.get("stop", ())
    return GenerationRequest(
        input=_input(prompt),
        sampling=_sampling(options),
        stop=StopRequest(
            max_tokens=options.get("max_tokens", 0),
            stop_token_ids=frozenset(options.get("stop_token_ids", ())),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=options.get("ignore_eos", False),
            include_stop=options.get("include_stop", False),
        ),
        speculation=SpeculationParams(
            enabled=options.get("speculation", True),
            max_draft_tokens=options.get("max_draft_tokens"),
            drafter=options.get("drafter", ""),
            acceptance=Acceptance(options.get("acceptance", Acceptance.COUPLED)),
        ),
        model=options.get("model", ""),
        logprobs=LogprobParams(options.get("logprobs"), options.get("prompt_logprobs")),
        bad_words=tuple(options.get("bad_words", ())),
        skip_special_tokens=options.get("skip_special_tokens", True),
        cache_salt=options.get("cache_salt", ""),
    )


def _input(prompt: Prompt) -> PromptInput:
    if isinstance(prompt, str):
        return prompt
    if not prompt:
        raise InvalidRequestError("prompt must not be empty", field="prompt")
    if isinstance(prompt[0], int):
        return tuple(cast(Sequence[int], prompt))
    return tuple(
        turn if isinstance(turn, ChatTurn) else ChatTurn(turn["role"], turn["content"])
        for turn in cast(Sequence[ChatTurn | Mapping[str, str]], prompt)
    )


def _sampling(options: Options) -> SamplingParams:
    edits = LogitEdits(
        grammar=options.get("grammar"),
        allowed_token_ids=tuple(options.get("allowed_token_ids", ())),
        min_tokens=options.get("min_tokens", 0),
        logit_bias=tuple(options.get("logit_bias", {}).items()),
        repetition_penalty=options.get("repetition_penalty", 1.0),
        frequency_penalty=options.get("frequency_penalty", 0.0),
        presence_penalty=options.get("presence_penalty", 0.0),
    )
    return SamplingParams(
        temperature=options.get("temperature", 1.0),
        top_k=options.get("top_k", 0),
        top_p=options.get("top_p", 1.0),
        min_p=options.get("min_p", 0.0),
        seed=options.get("seed") or 0,
        typical_p=options.get("typical_p", 1.0),
        edits=edits,
    )
