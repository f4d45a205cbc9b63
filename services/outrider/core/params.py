"""What a request says about its output. Standard library only.

With model and prompt, `SamplingParams` fixes the output; everything else says when it ends, what is told
about it, and how fast it may come.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class GrammarKind(enum.Enum):
    """How a grammar is written."""

    JSON_OBJECT = "json_object"  # any JSON object; no text
    JSON_SCHEMA = "json_schema"  # text: a JSON schema
    REGEX = "regex"  # text: a regular expression that the whole output matches
    CHOICE = "choice"  # text: a JSON list of strings, one of which is the output
    GRAMMAR = "grammar"  # text: a context-free grammar (EBNF, or Lark)


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the output must look like."""

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """What changes logits before temperature and truncation, in this order.

    Token ids are the target's. "Output" is what was generated before the token, draft tokens above it
    included; penalties count there, repetition_penalty in the prompt too.
    """

    grammar: Grammar | None = None  # masks all that the grammar does not allow next
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # a sequence's last id is banned after its other ids
    min_tokens: int = 0  # no end token before so many generated tokens
    end_token_ids: tuple[int, ...] = ()  # these, sorted; known to the verifier
    logit_bias: tuple[tuple[int, float], ...] = ()  # id, what is added
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. With model and prompt, this fixes the output."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 0 <= seed < 2**64
    typical_p: float = 1.0
    edits: LogitEdits = LogitEdits()


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a generation ends, as far as token ids tell."""

    max_tokens: int  # generated tokens, at least 1
    stop_token_ids: frozenset[int] = frozenset()  # end-of-sequence ids included unless ignored


class Acceptance(enum.Enum):
    """How draft tokens are accepted."""

    COUPLED = "coupled"  # if the target picks the same token: output as without speculation
    TOKEN = "token"  # with min(1, p/q): another output of the same law
    BLOCK = "block"  # the same for whole blocks


FUSED = "fused"
"""Instead of a drafter's name: all drafters, as far as they are worth asking."""
OFF = "off"
"""Instead of a drafter's name: no speculation."""
JOINED = "+"
"""Between names of drafters: these together."""


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """What a request says about speculation. Changes speed, and never the law of the output."""

    enabled: bool = True
    max_draft_tokens: int | None = None  # None: the verifier's default; 0 acts as not enabled
    drafter: str = ""  # empty: the verifier's default
    acceptance: Acceptance = Acceptance.COUPLED


@dataclass(frozen=True, slots=True)
class LogprobParams:
    """Which log-probabilities are told. They are the model's own, before any edit and temperature 1."""

    top: int | None = None  # so many most probable tokens beside the generated one; None: nothing is told
    prompt_top: int | None = None  # the same for the prompt's tokens


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position."""

    token_id: int
    logprob: float
    rank: int  # 1: the most probable
    top: tuple[tuple[int, float], ...] = ()  # ids and log-probabilities, most probable first
