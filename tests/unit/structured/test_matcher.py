"""A matcher allows what the grammar allows next, an end where it may end, and goes back without a trace."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from tokenizers import Tokenizer

from outrider.core.params import GrammarKind
from outrider.structured import GrammarMatcher
from tests.tiny_models import EOS_TOKEN_ID
from tests.unit.structured.conftest import VOCAB, Make

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"enum": ["a", "bb"]}, "maxItems": 2},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
EBNF = 'root ::= item ("," item)*\nitem ::= [a-c]+ | "(" root ")"'
LARK = 'start: item ("," item)*\nitem: /[a-c]+/ | "(" start ")"'
FITTING = [
    (GrammarKind.JSON_OBJECT, "", '{"a": [1, true, null], "b": {"c": "d"}}'),
    (GrammarKind.JSON_SCHEMA, SCHEMA, '{"name": "Ann", "age": 42, "tags": ["a", "bb"]}'),
    (GrammarKind.REGEX, r"[a-z]+@[a-z]+\.(com|org)", "fox@dog.org"),
    (GrammarKind.REGEX, r"^\d{3}$", "123"),
    (GrammarKind.CHOICE, json.dumps(["yes", "no", 'a "quoted"\nline', "日本 😀"]), "日本 😀"),
    (GrammarKind.CHOICE, json.dumps(["yes", "no", 'a "quoted"\nline']), 'a "quoted"\nline'),
    (GrammarKind.GRAMMAR, EBNF, "ab,(c,a),b"),
    (GrammarKind.GRAMMAR, LARK, "ab,(c,a),b"),
    (GrammarKind.GRAMMAR, "start: x y\nx[lazy]: /a.*b/\ny: /[0-9]+/", "aaab12"),
    (GrammarKind.GRAMMAR, 'start: x "z"\nx[suffix="b"]: /a.*/', "aaabz"),
    (GrammarKind.GRAMMAR, 'start: x "z"\nx[stop="b"]: /a.*/', "aaabz"),
    (GrammarKind.GRAMMAR, 'start: x "z"\nx: %json {"enum": ["a", "b"]}', '"a"z'),
    (GrammarKind.GRAMMAR, "start: A\nA: /[a-z]{1,5}/ & ~/foo/", "fox"),
    (GrammarKind.GRAMMAR, "start: <|im_start|> /a+/ <|im_start|>", "<|im_start|>aa<|im_start|>"),
]
IDS = [f"{kind.value}-{index}" for index, (kind, _, _) in enumerate(FITTING)]


def allowed(matcher: GrammarMatcher) -> list[int]:
    """Ids that the mask allows; the buffer held something else before."""
    mask = np.full(matcher.words, 0x55555555, dtype=np.int32)
    matcher.fill_mask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize(("kind", "text", "output"), FITTING, ids=IDS)
def test_each_kind_accepts_what_fits_and_ends_only_there(
    kind: GrammarKind, text: str, output: str, make: Make, tokenizer: Tokenizer
) -> None:
    matcher = make(kind, text)
    ids = tokenizer.encode(output).ids
    for token_id in ids:
        assert token_id in allowed(matcher)
        assert matcher.accept(token_id)
    assert EOS_TOKEN_ID in allowed(matcher)
    assert len(matcher) == len(ids)


@pytest.mark.parametrize(
    ("kind", "text", "output", "wrong"),
    [
        (GrammarKind.JSON_OBJECT, "", "", "["),
        (GrammarKind.JSON_OBJECT, "", '{"a"', "}"),
        (GrammarKind.JSON_SCHEMA, SCHEMA, '{"name": "Ann", "age": ', '"'),
        (GrammarKind.REGEX, "[ab]{3}", "ab", "c"),
        (GrammarKind.CHOICE, '["yes", "no"]', "y", "n"),
        (GrammarKind.GRAMMAR, LARK, "a,(b", "("),
    ],
)
def test_what_does_not_fit_is_masked_and_refused_and_changes_nothing(
    kind: GrammarKind, text: str, output: str, wrong: str, make: Make, tokenizer: Tokenizer
) -> None:
    matcher = make(kind, text)
    for token_id in tokenizer.encode(output).ids:
        assert matcher.accept(token_id)
    before = allowed(matcher)
    (forbidden,) = tokenizer.encode(wrong).ids
    assert forbidden not in before and EOS_TOKEN_ID not in before
    for refused in (forbidden, EOS_TOKEN_ID, VOCAB - 1, VOCAB + 10**6, -1):
        assert not matcher.accept(refused)
        assert allowed(matcher) == before


def test_after_the_end_only_end_tokens_follow(make: Make, tokenizer: Tokenizer) -> None:
    matcher = make(GrammarKind.REGEX, "ab*")
    (a,), (b,) = tokenizer.encode("a").ids, tokenizer.encode("b").ids
    assert matcher.accept(a)
    assert not matcher.is_terminated
    assert matcher.accept(EOS_TOKEN_ID)
    assert matcher.is_terminated
    assert allowed(matcher) == [EOS_TOKEN_ID]
    assert not matcher.accept(b)
    assert matcher.accept(EOS_TOKEN_ID)
    matcher.rollback(2)
    assert matcher.accept(b)
    assert len(matcher) == 2


def test_a_grammar_that_is_complete_is_terminated(make: Make, tokenizer: Tokenizer) -> None:
    matcher = make(GrammarKind.CHOICE, '["no"]')
    for token_id in tokenizer.encode("no").ids:
        assert not matcher.is_terminated
        assert matcher.accept(token_id)
    assert matcher.is_terminated
    assert allowed(matcher) == [EOS_TOKEN_ID]


def test_stop_ids_without_text_end_an_output_and_those_with_text_do_not(
    make: Make, tokenizer: Tokenizer
) -> None:
    (b,) = tokenizer.encode("b").ids
    matcher = make(GrammarKind.REGEX, "a", stop=(0, b))
    assert matcher.accept(tokenizer.encode("a").ids[0])
    assert allowed(matcher) == [0, EOS_TOKEN_ID]
    assert not matcher.accept(b)
    assert matcher.accept(0)


def test_ids_past_the_tokenizer_are_never_allowed(make: Make) -> None:
    matcher = make(GrammarKind.REGEX, r"(?s:.)*")
    ids = allowed(matcher)
    assert max(ids) < 512 and EOS_TOKEN_ID in ids and 0 not in ids and 1 not in ids


@pytest.mark.parametrize(("kind", "text", "output"), FITTING, ids=IDS)
def test_going_back_leaves_no_trace(kind: GrammarKind, text: str, output: str, make: Make) -> None:
    """Random walks with rollbacks: the mask is always the one of a fresh matcher at the same place."""
    rng = random.Random(7)
    matcher = make(kind, text)
    path: list[int] = []
    for _ in range(150):
        fresh = make(kind, text)
        assert all(fresh.accept(token_id) for token_id in path)
        ids = allowed(matcher)
        assert ids == allowed(fresh)
        assert matcher.is_terminated == fresh.is_terminated
        if path and rng.random() < 0.4:
            count = rng.randint(1, len(path))
            matcher.rollback(count)
            del path[-count:]
            continue
        matcher.accept(rng.randrange(VOCAB))  # mostly refused
        if len(matcher) > len(path):
            matcher.rollback(1)
        token_id = rng.choice(ids)
        assert matcher.accept(token_id)
        path.append(token_id)
