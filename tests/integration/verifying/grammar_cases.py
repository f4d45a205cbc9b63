"""Grammars of every kind with a check of their outputs, and a drafter that ignores them."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jiter
from tokenizers import Tokenizer

from outrider.core.params import (
    Grammar,
    GrammarKind,
    LogitEdits,
    SamplingParams,
    SpeculationParams,
)
from outrider.core.rounds import Proposal
from outrider.core.sessions import FinishReason
from outrider.wire.messages import SessionRequest
from tests.integration.verifying.harness import Reply, Verifier, request
from tests.integration.verifying.scripted import Held
from tests.tiny_models import EOS_TOKEN_ID

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "bb"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # a random model would go on with blanks
}
CHOICES = ["a first choice", "a second one", "none"]
EBNF = 'root ::= item ("," item)*\nitem ::= [a-c]+ | "(" root ")"'
EMAIL = r"[a-z]{2,8}@[a-z]{2,8}\.(com|org)"


def is_person(value: Any) -> bool:
    return (
        list(value) == ["name", "age", "tags"]
        and re.fullmatch("[A-Z][a-z]{1,6}", value["name"]) is not None
        and type(value["age"]) is int
        and 0 <= value["age"] <= 99
        and 1 <= len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "bb"}
    )


def is_list(text: str) -> bool:
    """Is it what EBNF describes?"""
    while (shorter := re.sub(r"\([a-c]+(,[a-c]+)*\)", "c", text)) != text:
        text = shorter
    return re.fullmatch("[a-c]+(,[a-c]+)*", text) is not None


KINDS: list[tuple[Grammar, Callable[[str], bool]]] = [
    (Grammar(GrammarKind.JSON_OBJECT), lambda text: isinstance(json.loads(text), dict)),
    (Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), lambda text: is_person(json.loads(text))),
    (Grammar(GrammarKind.REGEX, EMAIL), lambda text: re.fullmatch(EMAIL, text) is not None),
    (Grammar(GrammarKind.CHOICE, json.dumps(CHOICES)), lambda text: text in CHOICES),
    (Grammar(GrammarKind.GRAMMAR, EBNF), is_list),
]
FITS = dict(KINDS)
SAMPLINGS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.0, "seed": 6, "top_p": 0.9},
]


def asking(grammar: Grammar, **sampling: Any) -> SamplingParams:
    return SamplingParams(**sampling, edits=LogitEdits(grammar=grammar))


def batch(
    prompts: list[list[int]], speculation: SpeculationParams | None = None, *, max_tokens: int = 64
) -> list[SessionRequest]:
    """Every kind with every sampling, and sessions without a grammar between them."""
    pairs = [(grammar, sampling) for grammar, _ in KINDS for sampling in SAMPLINGS]
    wanted = []
    for index, (grammar, sampling) in enumerate(pairs):
        prompt = [*prompts[index % 4], index + 3]
        for own in (asking(grammar, **sampling), SamplingParams(**sampling))[: 1 + (index % 4 == 0)]:
            wanted.append(
                request(
                    prompt,
                    sampling=own,
                    max_tokens=max_tokens,
                    speculation=speculation,
                    ignore_eos=own.edits.grammar is None,
                )
            )
    return wanted


async def replies(verifier: Verifier, wanted: list[SessionRequest]) -> list[Reply]:
    return await asyncio.gather(*(verifier.generate(one) for one in wanted))


def check(folder: Path, wanted: list[SessionRequest], got: list[Reply]) -> None:
    """Outputs that ended by themselves fit their grammars."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ended = set()
    for one, reply in zip(wanted, got, strict=True):
        grammar = one.sampling.edits.grammar
        text = tokenizer.decode(reply.tokens, skip_special_tokens=False)
        if grammar is not None and reply.reason is FinishReason.STOP:
            ended.add(grammar.kind)
            assert FITS[grammar](text), text
        elif grammar is not None and grammar.kind in (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA):
            jiter.from_json(text.encode(), partial_mode=True)
    assert ended >= set(GrammarKind) - {GrammarKind.JSON_OBJECT}


def vocabulary(folder: Path) -> dict[str, int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()


def illegal(held: Held) -> list[Proposal]:
    """Anything, mostly not what a grammar allows: special tokens, padding, the end, words."""
    rng = random.Random(len(held.tokens))
    drawn = [rng.choice((0, 1, EOS_TOKEN_ID, rng.randrange(512), rng.randrange(300, 512))) for _ in range(12)]
    return [held.propose(drawn[: held.wanted])]
