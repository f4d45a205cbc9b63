"""What passes between services, where core has no type for it. Standard library and core only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.core.errors import InvalidRequestError
from outrider.core.models import PROTOCOL_VERSION, ModelInfo
from outrider.core.params import (
    Acceptance,
    LogprobParams,
    SamplingParams,
    SpeculationParams,
    StopParams,
    TokenLogprobs,
)
from outrider.core.rounds import Proposal, StaleReason
from outrider.core.sessions import FinishReason, SpeculationStats, Usage


@dataclass(frozen=True, slots=True)
class FeatureBlock:
    """Hidden states of committed tokens: `rows` x `columns` bf16 elements, row-major, little-endian."""

    name: str
    first_position: int  # 0 = first token of the prompt
    rows: int
    columns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class OpenDraft:
    """Start (or start over) drafting for a session."""

    session_id: str
    epoch: int
    token_ids: tuple[int, ...]  # prompt and committed tokens
    sampling: SamplingParams
    draft_length: int
    features: tuple[FeatureBlock, ...] = ()
    traceparent: str = ""
    patience_us: int = 0  # 0: not said
    prompt_len: int = 0  # of token_ids
    acceptance: Acceptance = Acceptance.COUPLED
    draft_nodes: int = 0  # 0: draft_length, a chain
    tenant: str = ""  # what was served to one tenant is never proposed to another


@dataclass(frozen=True, slots=True)
class AdvanceDraft:
    """The outcome of a round: draft on from there."""

    session_id: str
    epoch: int
    base_len: int  # tokens before this commit, prompt included
    token_ids: tuple[int, ...]  # none: it only brings features
    accepted: int
    draft_length: int  # 0: keep up, propose nothing
    features: tuple[FeatureBlock, ...] = ()
    traceparent: str = ""
    patience_us: int = 0  # 0: not said
    draft_nodes: int = 0  # 0: draft_length, a chain


@dataclass(frozen=True, slots=True)
class CloseDraft:
    """Forget a session."""

    session_id: str
    epoch: int


DraftCommand = OpenDraft | AdvanceDraft | CloseDraft


@dataclass(frozen=True, slots=True)
class Stale:
    """The drafter cannot draft for a session from what it holds."""

    session_id: str
    epoch: int
    reason: StaleReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DrafterLoad:
    """How busy a drafter is."""

    sessions: int
    queued: int
    kv_usage: float  # 0 to 1


@dataclass(frozen=True, slots=True)
class Draining:
    """The drafter is about to stop."""

    grace_ms: int


DraftEvent = Proposal | Stale | DrafterLoad | Draining


@dataclass(frozen=True, slots=True)
class VerifierLoad:
    """How busy a verifier is; the proto message explains each field."""

    running: int = 0
    waiting: int = 0
    max_running: int = 0
    max_waiting: int = 0
    kv_usage: float = 0.0  # 0 to 1


@dataclass(frozen=True, slots=True)
class VerifierInfo:
    """A verifier as it describes itself; the proto message explains each field."""

    model: ModelInfo
    eos_token_ids: frozenset[int] = frozenset()
    batch_invariance: str = ""
    drafters: tuple[str, ...] = ()
    instance_id: str = ""
    default_draft_length: int = 0
    degraded: tuple[str, ...] = ()
    protocol_version: int = PROTOCOL_VERSION
    draining: bool = False  # it takes no sessions, and those that it has are to go elsewhere
    load: VerifierLoad = field(default_factory=VerifierLoad)
    pool_tokens: int = 0  # 0: not told


@dataclass(frozen=True, slots=True)
class StopRequest:
    """When to end, as a request says it; `resolve` makes core's StopParams of it."""

    max_tokens: int = 0  # 0: up to the context length
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()  # the gateway's business
    ignore_eos: bool = False
    include_stop: bool = False  # the gateway's business

    def resolve(self, *, eos_token_ids: Collection[int], room: int) -> StopParams:
        """What the verifier goes by: `room` is how many tokens fit after the prompt.

        Raises:
            InvalidRequestError: nothing fits.
        """
        if room < 1:
            raise InvalidRequestError("the prompt leaves no room for a token", field="max_tokens")
        eos = () if self.ignore_eos else eos_token_ids
        return StopParams(min(self.max_tokens or room, room), self.stop_token_ids.union(eos))


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What a gateway asks of a verifier."""

    session_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stop: StopRequest = field(default_factory=StopRequest)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    logprobs: LogprobParams = field(default_factory=LogprobParams)
    cache_salt: str = ""  # whom it belongs to: no KV or text kept of others is used for it
    tenant: str = ""  # who asks, by his API key
    presentation: bytes = field(default=b"", repr=False)  # the gateway's note about its delivery
    generated: tuple[int, ...] = ()  # to restore a session: the generated tokens that the client has
    epoch: int = 1  # to restore a session: above the last one it was known to have


@dataclass(frozen=True, slots=True)
class ResumeSession:
    """Stream a session again from a token on; the proto message explains each field."""

    session_id: str
    from_token: int = 0
    tenant: str = ""
    known: tuple[int, ...] = ()  # the generated tokens that the caller has; none, or `from_token` of them
    mark: bytes = b""  # must be part of the session's presentation


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """The session was admitted."""

    seed: int
    epoch: int
    presentation: bytes = field(default=b"", repr=False)  # what the gateway that started it noted
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SessionTokens:
    """Tokens were committed."""

    first_token: int  # 0 = first generated token
    token_ids: tuple[int, ...]
    accepted: int = 0  # how many of them, from the start, were draft tokens
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each, if asked for


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of tokens of the prompt; its first token has none."""

    first_position: int  # 0 = first token of the prompt
    entries: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class SessionFinished:
    """The session is over."""

    reason: FinishReason
    usage: Usage
    speculation: SpeculationStats
    stop_token_id: int | None = None


SessionEvent = SessionStarted | PromptLogprobs | SessionTokens | SessionFinished


@dataclass(frozen=True, slots=True)
class CancelSession:
    """End a session; `keep_tokens` generated tokens were delivered (None: all)."""

    session_id: str
    keep_tokens: int | None = None
    reason: FinishReason = FinishReason.CANCELLED
    park: bool = False  # do not end it: leave it in the store, to be resumed


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation with all that a chat template may be told, as JSON values. The gRPC API has none."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    documents: tuple[Mapping[str, Any], ...] = ()
    template: str | None = None  # instead of the model's
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    reads_calls: bool = False  # the answer may call `tools`


PromptInput = str | tuple[int, ...] | tuple[ChatTurn, ...] | Conversation
"""Plain text, token ids, or a conversation (never empty, so the kinds of tuple can be told apart)."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks of a gateway."""

    input: PromptInput
    sampling: SamplingParams
    stop: StopRequest = field(default_factory=StopRequest)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    model: str = ""  # empty: the gateway's only model
    logprobs: LogprobParams = field(default_factory=LogprobParams)
    bad_words: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    cache_salt: str = ""  # as in SessionRequest


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """The request was admitted."""

    generation_id: str
    model: str
    seed: int


@dataclass(frozen=True, slots=True)
class GenerationDelta:
    """New tokens and text."""

    text: str
    token_ids: tuple[int, ...]
    accepted: int
    first_token: int  # 0 = first generated token
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each, if asked for


@dataclass(frozen=True, slots=True)
class GenerationFinished:
    """The generation is over."""

    reason: FinishReason
    usage: Usage
    speculation: SpeculationStats


GenerationEvent = GenerationStarted | PromptLogprobs | GenerationDelta | GenerationFinished
