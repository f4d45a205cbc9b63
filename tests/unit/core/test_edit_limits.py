"""The bounds of what changes logits, of grammars and of what is told: just inside, and just outside."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from outrider.core import limits
from outrider.core.errors import InvalidRequestError
from outrider.core.params import Grammar, GrammarKind, LogitEdits, LogprobParams, SamplingParams

NAN, INF = math.nan, math.inf
VOCAB = 50


@pytest.mark.parametrize(
    "edits",
    [
        LogitEdits(),
        LogitEdits(frequency_penalty=-2, presence_penalty=2.0),
        LogitEdits(repetition_penalty=limits.MIN_REPETITION_PENALTY),
        LogitEdits(repetition_penalty=limits.MAX_REPETITION_PENALTY),
        LogitEdits(min_tokens=2**31 - 1, end_token_ids=(0, 49)),
        LogitEdits(allowed_token_ids=(49,)),
        LogitEdits(allowed_token_ids=(0,) * limits.MAX_ALLOWED_TOKEN_IDS),
        LogitEdits(logit_bias=((0, -100.0), (49, 100))),
        LogitEdits(bad_words=((0,), (49,) * limits.MAX_BAD_WORD_TOKENS)),
        LogitEdits(bad_words=((1,),) * limits.MAX_BAD_WORD_SEQUENCES),
    ],
)
def test_edits_inside(edits: LogitEdits) -> None:
    limits.check_edits(edits, vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("frequency_penalty", value) for value in (-2.01, 2.01, NAN, INF, "1", None, True)),
        *(("presence_penalty", value) for value in (-2.01, 2.01, NAN, -INF, None)),
        *(("repetition_penalty", value) for value in (0.0, -1.0, 0.001, 100.5, NAN, INF, None)),
        *(("min_tokens", value) for value in (-1, 2**31, 1.0, True, None)),
        *(("allowed_token_ids", value) for value in ((-1,), (VOCAB,), (1.0,), (True,), (2**63,))),
        ("allowed_token_ids", (0,) * (limits.MAX_ALLOWED_TOKEN_IDS + 1)),
        *(("logit_bias", value) for value in (((VOCAB, 1.0),), ((-1, 1.0),), ((True, 1.0),))),
        *(("logit_bias", ((1, value),)) for value in (-100.5, 100.5, NAN, INF, "1", None, False)),
        ("logit_bias", ((1, 1.0), (1, 2.0))),
        ("logit_bias", tuple((index, 0.0) for index in range(limits.MAX_LOGIT_BIAS_ENTRIES + 1))),
        *(("bad_words", value) for value in (((),), ((VOCAB,),), ((1, -1),), ((True,),))),
        ("bad_words", ((1,) * (limits.MAX_BAD_WORD_TOKENS + 1),)),
        ("bad_words", ((1,),) * (limits.MAX_BAD_WORD_SEQUENCES + 1)),
        ("end_token_ids", (-1,)),
        ("end_token_ids", (1,) * (limits.MAX_END_TOKEN_IDS + 1)),
    ],
)
def test_edits_outside(field: str, value: Any) -> None:
    edits = LogitEdits(**{field: value})
    with pytest.raises(InvalidRequestError, match=f"^{field} must") as caught:
        limits.check_edits(edits, vocab_size=VOCAB)
    assert caught.value.field == field
    assert len(str(caught.value)) < 300
    with pytest.raises(InvalidRequestError):
        limits.check_sampling(SamplingParams(edits=edits), vocab_size=VOCAB)


def test_ids_that_no_vocabulary_is_given_for_fit_31_bits() -> None:
    for vocab_size in (None, 0):
        limits.check_edits(LogitEdits(allowed_token_ids=(2**31 - 1,)), vocab_size=vocab_size)
        with pytest.raises(InvalidRequestError, match=f"from 0 to {2**31 - 1}"):
            limits.check_edits(LogitEdits(allowed_token_ids=(2**31,)), vocab_size=vocab_size)


def test_bad_words() -> None:
    limits.check_bad_words(())
    limits.check_bad_words(["x" * limits.MAX_BAD_WORD_CHARS] * limits.MAX_BAD_WORDS)
    bad: Any
    for bad in (
        [""],
        [3],
        ["x" * (limits.MAX_BAD_WORD_CHARS + 1)],
        ["x"] * (limits.MAX_BAD_WORDS + 1),
        ["\ud800"],
    ):
        with pytest.raises(InvalidRequestError, match=r"^bad_words (must|holds)") as caught:
            limits.check_bad_words(bad)
        assert caught.value.field == "bad_words"


def test_min_tokens_leaves_room() -> None:
    limits.check_min_tokens(5, 5)
    with pytest.raises(InvalidRequestError, match=r"min_tokens must be at most max_tokens \(5\), got 6"):
        limits.check_min_tokens(6, 5)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.JSON_OBJECT, ""),
        (GrammarKind.JSON_SCHEMA, "{}"),
        (GrammarKind.JSON_SCHEMA, "true"),
        (GrammarKind.JSON_SCHEMA, nested(limits.MAX_GRAMMAR_NESTING)),
        (GrammarKind.JSON_SCHEMA, json.dumps({"title": "[" * 1000 + '\\"{'})),
        (GrammarKind.REGEX, "(a|b)*" + r"\(" * 1000),
        (GrammarKind.REGEX, "(a)" * 1000),
        (GrammarKind.REGEX, "x" * limits.MAX_GRAMMAR_CHARS),
        (GrammarKind.CHOICE, '["yes", "no"]'),
        (GrammarKind.GRAMMAR, 'root ::= "a"'),
    ],
)
def test_grammars_inside(kind: GrammarKind, text: str) -> None:
    limits.check_grammar(Grammar(kind, text))


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (GrammarKind.JSON_OBJECT, "{}", "must have no text"),
        *((kind, "", "needs a text") for kind in GrammarKind if kind is not GrammarKind.JSON_OBJECT),
        *(
            (kind, "x" * (limits.MAX_GRAMMAR_CHARS + 1), "at most 131072 characters")
            for kind in GrammarKind
            if kind is not GrammarKind.JSON_OBJECT
        ),
        (GrammarKind.JSON_SCHEMA, nested(limits.MAX_GRAMMAR_NESTING + 1), "nested at most 64 deep, got 65"),
        (GrammarKind.JSON_SCHEMA, "[" * 100_000, "nested"),
        (GrammarKind.JSON_SCHEMA, "{", "is no JSON"),
        (GrammarKind.JSON_SCHEMA, "[]", "must be a JSON schema"),
        (GrammarKind.JSON_SCHEMA, "null", "must be a JSON schema"),
        (GrammarKind.REGEX, "(" * 65, "nested"),
        (GrammarKind.GRAMMAR, "[({" * 40, "nested"),
        (GrammarKind.REGEX, "a\0b", r"U\+0000"),
        (GrammarKind.REGEX, "a\ud800", "half of a surrogate"),
        (GrammarKind.CHOICE, "yes", "is no JSON"),
        (GrammarKind.CHOICE, "[]", "must be a JSON list"),
        (GrammarKind.CHOICE, "[1]", "must be a JSON list"),
        (GrammarKind.CHOICE, '{"a": "b"}', "must be a JSON list"),
        (GrammarKind.CHOICE, '[""]', "choices of 1 to"),
        (GrammarKind.CHOICE, json.dumps(["x" * (limits.MAX_CHOICE_CHARS + 1)]), "choices of 1 to"),
        (GrammarKind.CHOICE, json.dumps(["x"] * (limits.MAX_CHOICES + 1)), "at most 1024 entries"),
    ],
)
def test_grammars_outside(kind: GrammarKind, text: str, problem: str) -> None:
    grammar = Grammar(kind, text)
    with pytest.raises(InvalidRequestError, match=f"^grammar .*{problem}") as caught:
        limits.check_edits(LogitEdits(grammar=grammar))
    assert caught.value.field == "grammar"
    assert len(str(caught.value)) < 300


def test_logprobs() -> None:
    limits.check_logprobs(LogprobParams())
    limits.check_logprobs(LogprobParams(top=0, prompt_top=limits.MAX_LOGPROBS))
    values: Sequence[Any] = (-1, limits.MAX_LOGPROBS + 1, 1.0, True)
    for value in values:
        for params, field in (
            (LogprobParams(top=value), "logprobs"),
            (LogprobParams(prompt_top=value), "prompt_logprobs"),
        ):
            with pytest.raises(
                InvalidRequestError, match=f"^{field} must be an integer from 0 to 20"
            ) as caught:
                limits.check_logprobs(params)
            assert caught.value.field == field


def test_completions() -> None:
    limits.check_completions(1)
    limits.check_completions(limits.MAX_COMPLETIONS)
    limits.check_completions(2, 2)
    values: Sequence[tuple[Any, Any, str]] = (
        (0, None, "n"),
        (limits.MAX_COMPLETIONS + 1, None, "n"),
        (True, None, "n"),
        (2, 1, "best_of"),
        (1, limits.MAX_COMPLETIONS + 1, "best_of"),
    )
    for n, best_of, field in values:
        with pytest.raises(InvalidRequestError, match=f"^{field} must be") as caught:
            limits.check_completions(n, best_of)
        assert caught.value.field == field
