"""Bodies that clients send, checked and translated. Bounds of values are core/limits.py's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from outrider.core.errors import InvalidRequestError
from outrider.core.params import SamplingParams, SpeculationParams
from outrider.gateway.generations import draw_seed
from outrider.gateway.openai import unsupported
from outrider.wire.messages import ChatTurn, GenerationRequest, PromptInput, StopRequest

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; chats go on to the end of the context."""
MAX_PROMPTS = 64
"""Prompts in one completions request."""
MAX_MESSAGES = 4096


def _strings(value: Any) -> Any:
    return [value] if isinstance(value, str) else value or []


def _text_of_content(value: Any) -> Any:
    """A string, or the text parts of a list, one a line as vLLM joins them."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return value
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                f'part {index} must be {{"type": "text", "text": "..."}}: only text is supported'
            )
        texts.append(part["text"])
    return "\n".join(texts)


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


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)


class StreamOptions(_Body):
    """Options of a stream."""

    include_usage: bool = Field(False, description="one more chunk at the end, with the usage")


class Speculation(_Body):
    """Extension: what a request says about speculation. It changes speed, never output."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool = Field(True, description="false: no drafter ever hears of this request")
    max_draft_tokens: int | None = Field(None, description="most draft tokens a round; 0 as enabled=false")
    drafter: str = Field("", description="drafting method; empty: the server's default")
    stats: bool = Field(False, description="return `speculation_stats`")


class Message(_Body):
    """One message of a conversation. `developer` is read as `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text_of_content)] = ""

    def turn(self) -> ChatTurn:
        """As the chat template reads it."""
        return ChatTurn("system" if self.role == "developer" else self.role, self.content)


class _Generation(_Body):
    """What chat and completions share."""

    model: str = Field("", description="empty: the only model served")
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, ge=-1, description="extension; 0 or -1: all")
    min_p: float | None = Field(None, description="extension")
    seed: int | None = Field(None, ge=-(2**63), lt=2**64, description="unset: drawn, and returned as `seed`")
    stop: Annotated[list[str], BeforeValidator(_strings)] = []
    stop_token_ids: list[int] | None = Field(None, description="extension")
    ignore_eos: bool = Field(False, description="extension: go on past the model's end of sequence")
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    speculation: Speculation = Speculation()
    return_token_ids: bool | None = Field(False, description="extension: token ids of prompt and answer")

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream."""
        return bool(self.stream)

    @property
    def clamps_max_tokens(self) -> bool:
        """Whether the length is a default, of which as much is taken as fits."""
        return False

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def _check(self) -> None:
        if self.stream_options is not None:
            if not self.streams:
                raise InvalidRequestError("stream_options needs stream to be true", field="stream_options")
            unsupported.refuse(self.stream_options.model_extra, unsupported.STREAM_OPTIONS, "stream_options.")

    def _request(self, prompt: PromptInput, max_tokens: int, seed: int) -> GenerationRequest:
        return GenerationRequest(
            input=prompt,
            sampling=SamplingParams(
                temperature=1.0 if self.temperature is None else self.temperature,
                top_k=max(self.top_k or 0, 0),
                top_p=1.0 if self.top_p is None else self.top_p,
                min_p=self.min_p or 0.0,
                seed=seed,
            ),
            stop=StopRequest(
                max_tokens, frozenset(self.stop_token_ids or ()), tuple(self.stop), self.ignore_eos
            ),
            speculation=SpeculationParams(
                self.speculation.enabled, self.speculation.max_draft_tokens, self.speculation.drafter
            ),
            model=self.model,
        )

    def _seed(self) -> int:
        """OpenAI's seeds are signed; noise is keyed by the same 64 bits without a sign."""
        return draw_seed() if self.seed is None else self.seed % 2**64


class ChatRequest(_Generation):
    """Body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, description="OpenAI's newer name of max_tokens")

    def generations(self) -> list[GenerationRequest]:
        """What to generate.

        Raises:
            InvalidRequestError: a parameter that is not supported, or two that contradict.
        """
        self._check()
        unsupported.refuse(self.model_extra, unsupported.CHAT)
        for index, message in enumerate(self.messages):
            unsupported.refuse(message.model_extra, unsupported.MESSAGE, f"messages[{index}].")
        turns = tuple(message.turn() for message in self.messages)
        max_tokens = self.max_completion_tokens or self.max_tokens or 0
        return [self._request(turns, max_tokens, self._seed())]


class CompletionRequest(_Generation):
    """Body of /v1/completions."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts)]

    @property
    def clamps_max_tokens(self) -> bool:
        """Whether the length is a default, of which as much is taken as fits."""
        return self.max_tokens is None

    def generations(self) -> list[GenerationRequest]:
        """What to generate: one for each prompt, all with the same seed.

        Raises:
            InvalidRequestError: a parameter that is not supported, or two that contradict.
        """
        self._check()
        unsupported.refuse(self.model_extra, unsupported.COMPLETION)
        seed = self._seed()
        max_tokens = self.max_tokens or COMPLETION_MAX_TOKENS
        inputs = (prompt if isinstance(prompt, str) else tuple(prompt) for prompt in self.prompt)
        return [self._request(prompt, max_tokens, seed) for prompt in inputs]
