"""What is asked: requests of every kind, and what an undisturbed run answers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from bench.soak.world import DRAFT_MODEL, LOOKUP
from tests import sse
from tests.traffic import ask, persist

from outrider.wire.v1 import common_pb2, generation_pb2

GRPC, HTTP = "gRPC", "SSE"
TEXTS = (
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "A drafter rides ahead and proposes tokens, and the verifier checks them in one forward pass. A drafter",
    "What is the capital of France? Paris is the capital and the largest city of France. What is the capital",
    "def add(first, second): return first + second\ndef add(first, second):",
)
DRAFTERS_ASKED = (DRAFT_MODEL, LOOKUP, f"{DRAFT_MODEL}+{LOOKUP}", "")


@dataclass(frozen=True)
class Question:
    """One request, to be sent over either API."""

    kind: str  # greedy, seeded, edited: decided by the seed; token, block: drawn anew after a takeover
    prompt: str
    max_tokens: int
    temperature: float
    seed: int
    drafter: str | None  # None: no speculation

    @property
    def determined(self) -> bool:
        """The same tokens always."""
        return self.kind not in ("token", "block")

    def grpc(self, *, drafter: str | None) -> generation_pb2.GenerateRequest:
        """For the gRPC API."""
        wanted = ask(
            self.prompt,
            drafter=drafter,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
        )
        if self.kind == "edited":
            wanted.sampling.top_p = 0.9
            wanted.sampling.edits.frequency_penalty = 0.5
        elif not self.determined:
            rule = f"ACCEPTANCE_{self.kind.upper()}"
            wanted.speculation.acceptance = common_pb2.Acceptance.Value(rule)
        return wanted

    def http(self, *, drafter: str | None) -> dict[str, Any]:
        """For the HTTP API."""
        edits = {"top_p": 0.9, "frequency_penalty": 0.5} if self.kind == "edited" else {}
        speculation: dict[str, Any] = {"enabled": drafter is not None, "drafter": drafter or ""}
        if not self.determined:
            speculation["acceptance"] = self.kind
        return sse.body(
            self.prompt,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
            speculation=speculation,
            **edits,
        )


@dataclass(frozen=True)
class Answer:
    """What an undisturbed run says."""

    token_ids: list[int]
    text: str


def questions(dice: random.Random, *, count: int, longest: int) -> list[Question]:
    """A pool from which streams draw."""
    kinds = ("greedy", "seeded", "seeded", "edited", "token", "block")
    return [
        Question(
            kind := kinds[number % len(kinds)],
            dice.choice(TEXTS) + f" {number}",
            dice.randrange(longest // 4, longest),
            0.0 if kind == "greedy" else 1.0,
            dice.randrange(1, 2**31),
            dice.choice(DRAFTERS_ASKED),
        )
        for number in range(count)
    ]


async def undisturbed(address: str, asked: list[Question]) -> dict[Question, Answer]:
    """The answers to all that the seed decides, with speculation off."""
    slots = asyncio.Semaphore(8)

    async def one(question: Question) -> tuple[Question, Answer]:
        async with slots:
            got = await persist([address], question.grpc(drafter=None))
            return question, Answer(got.token_ids, got.text)

    return dict(await asyncio.gather(*(one(question) for question in asked if question.determined)))
