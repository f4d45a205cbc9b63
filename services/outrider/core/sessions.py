"""What a session is: its record in the store, commits, counts. Standard library only."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from outrider.core.params import LogprobParams, SamplingParams, SpeculationParams, StopParams


class FinishReason(enum.Enum):
    """Why a generation ended; the values are OpenAI's."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as the store holds it: enough for any verifier to go on."""

    session_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stop: StopParams
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    epoch: int = 1
    tokens: tuple[int, ...] = ()  # committed (generated) tokens, without the prompt
    finish_reason: FinishReason | None = None
    logprobs: LogprobParams = field(default_factory=LogprobParams)
    model: str = ""  # ModelInfo.identity of the model that generates it; empty: not known
    cache_salt: str = field(default="", repr=False)  # whom it belongs to; may be a secret
    tenant: str = ""  # who asked: queues are shared between tenants, and nobody else may resume it
    presentation: bytes = field(default=b"", repr=False)  # the gateway's note about its delivery
    stop_token_id: int | None = None  # with finish_reason: the stop token that ended it, if one did


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that one round added to a session."""

    session_id: str
    epoch: int
    base_len: int  # generated tokens before this commit, without the prompt
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # with finish_reason: the stop token that ended it, if one did


@dataclass(slots=True)
class Usage:
    """Counts for the client."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0


@dataclass(slots=True)
class DrafterStats:
    """Counts of one drafter in one session; the proto message of the same name explains each."""

    name: str
    asked: int = 0
    proposals: int = 0
    missed: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(slots=True)
class SpeculationStats:
    """Counts of speculation of one session; the proto message of the same name explains each."""

    rounds: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    run_ahead_hits: int = 0
    missed: int = 0
    drafter: str = ""
    drafters: list[DrafterStats] = field(default_factory=list)
