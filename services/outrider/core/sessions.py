"""What a session is: parameters, record in the store, commits, counts. Standard library only."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class FinishReason(enum.Enum):
    """Why a generation ended; the values are OpenAI's."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. With model and prompt, this fixes the output."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 0 <= seed < 2**64


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a generation ends, as far as token ids tell."""

    max_tokens: int  # generated tokens, at least 1
    stop_token_ids: frozenset[int] = frozenset()  # end-of-sequence ids included unless ignored


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """What a request says about speculation. Changes speed, never output."""

    enabled: bool = True
    max_draft_tokens: int | None = None  # None: the verifier's default; 0 acts as not enabled
    drafter: str = ""  # empty: the verifier's default


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
    model: str = ""  # ModelInfo.identity of the model that generates it; empty: not known


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that one round added to a session."""

    session_id: str
    epoch: int
    base_len: int  # generated tokens before this commit, without the prompt
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class Usage:
    """Counts for the client."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0


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
