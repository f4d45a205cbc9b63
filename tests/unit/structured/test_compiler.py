"""What cannot be followed is refused by name before anything is generated; what compiled is kept."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.core.errors import InvalidRequestError, OverloadedError
from outrider.core.params import Grammar, GrammarKind
from outrider.structured import GrammarCompiler, GrammarMatcher, GrammarVocabulary
from outrider.structured import compiler as module
from tests.tiny_models import EOS_TOKEN_ID
from tests.unit.structured.conftest import VOCAB, Make


def refusal(compiler: GrammarCompiler, kind: GrammarKind, text: str) -> str:
    """Why a grammar is refused."""
    with pytest.raises(InvalidRequestError) as caught:
        compiler.submit(Grammar(kind, text)).result(timeout=60)
    assert caught.value.field == "grammar"
    return str(caught.value)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"if": {"type": "string"}, "then": {"maxLength": 3}}, "if"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
        ({"type": "string", "format": "made-up"}, "made-up"),
        ({"type": "strin"}, "strin"),
        ({"type": "string", "pattern": "^(?=a)b"}, "look-around"),
        ({"$ref": "http://example.com/schema"}, "http://example.com/schema"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"properties": {"deep": {"items": {"not": {}}}}}, "not"),
        # What the schema itself says of leniency does not count.
        ({"x-guidance": {"lenient": True}, "not": {"type": "string"}}, "not"),
        (
            {"x-guidance": {"coerce_one_of": True}, "oneOf": [{"type": "number"}, {"type": "integer"}]},
            "oneOf",
        ),
        (False, "false"),
    ],
)
def test_a_schema_keyword_that_cannot_be_enforced_is_refused_by_name(
    compiler: GrammarCompiler, schema: Any, named: str
) -> None:
    assert named in refusal(compiler, GrammarKind.JSON_SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (GrammarKind.JSON_SCHEMA, "{", "no JSON"),
        (GrammarKind.JSON_SCHEMA, "[1]", "object"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', "no output"),
        (GrammarKind.REGEX, "a(b", "unclosed group"),
        (GrammarKind.REGEX, r"(a)\1", "backreferences"),
        (GrammarKind.REGEX, r"[^\s\S]", "no output"),
        (GrammarKind.CHOICE, '{"a": 1}', "list"),
        (GrammarKind.CHOICE, "[]", "at least one"),
        (GrammarKind.CHOICE, '["a", 1]', "string"),
        (GrammarKind.GRAMMAR, "hello", "neither Lark"),
        (GrammarKind.GRAMMAR, 'root ::= "a" | missing', "missing"),
        (GrammarKind.GRAMMAR, 'start: "a" missing', "missing"),
        (GrammarKind.GRAMMAR, "start: start", "no output"),
        (GrammarKind.GRAMMAR, 'start: %json {"x-guidance": {"lenient": true}, "not": {}}', "not"),
        (GrammarKind.GRAMMAR, 'start: x\nx[temperature=0.5]: "a"', "temperature"),
        (GrammarKind.GRAMMAR, "start: x\nx[max_tokens=5]: /a+/", "max_tokens"),
    ],
)
def test_a_wrong_grammar_is_refused_with_the_reason(
    compiler: GrammarCompiler, kind: GrammarKind, text: str, said: str
) -> None:
    message = refusal(compiler, kind, text)
    assert said in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "lines",
    [
        [f"r{i}: r{i + 1}" for i in range(5000)],
        [f"R{i}: R{i + 1}" for i in range(5000)],
    ],
)
def test_a_grammar_of_too_many_rules_is_refused(compiler: GrammarCompiler, lines: list[str]) -> None:
    text = "\n".join([f"start: {lines[0].partition(':')[0]}", *lines])
    assert "at most 4096 lines" in refusal(compiler, GrammarKind.GRAMMAR, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "multipleOf": 123456789}'),
        (GrammarKind.JSON_SCHEMA, '{"type": "number", "multipleOf": 1.23456789}'),
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "multipleOf": 1' + "0" * 400 + "}"),
        (GrammarKind.JSON_SCHEMA, '{"multipleOf": true}'),
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "multipleOf": Infinity}'),
        (
            GrammarKind.JSON_SCHEMA,
            '{"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}], "type": "integer"}',
        ),
        (GrammarKind.GRAMMAR, 'start: "a" %json  {"type": "integer", "multipleOf": 123456789}'),
    ],
)
def test_multiples_are_bounded_as_each_remainder_is_a_state(
    compiler: GrammarCompiler, kind: GrammarKind, text: str
) -> None:
    assert "multipleOf" in refusal(compiler, kind, text)


@pytest.mark.parametrize("steps", [[10000], [0.01, 100, 2.5], [7, 11, 13], [1e-9]])
def test_usual_multiples_are_supported(make: Make, steps: list[float]) -> None:
    properties = {f"p{index}": {"type": "number", "multipleOf": step} for index, step in enumerate(steps)}
    make(GrammarKind.JSON_SCHEMA, json.dumps({"type": "object", "properties": properties}))


@pytest.mark.parametrize("text", ["a" * 120_000, "a{100000}"])
def test_a_text_so_long_that_each_mask_takes_long_is_refused(compiler: GrammarCompiler, text: str) -> None:
    assert "too complex" in refusal(compiler, GrammarKind.REGEX, text)


def test_rules_may_stand_in_one_another_as_deep_as_there_may_be_rules(compiler: GrammarCompiler) -> None:
    """In a usual thread the library would run out of stack, and take the process with it."""
    rules = [f'R{i}: "a" (R{i + 1} | "b")* "c"' for i in range(4000)]
    text = "\n".join(["start: R0", *rules, 'R4000: "a"'])
    compiled = compiler.submit(Grammar(GrammarKind.GRAMMAR, text)).result(timeout=60)
    compiled.start.fresh()  # for a matcher that has met a limit: in a thread with a usual stack
    definitions = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(4000)}
    schema = {"$defs": {**definitions, "d4000": {"type": "string"}}, "$ref": "#/$defs/d0"}
    compiler.submit(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))).result(timeout=60)
    more = {f"e{i}": {"$ref": "#/$defs/d0"} for i in range(200)}
    schema["$defs"] |= more  # type: ignore[operator]
    assert "$ref" in refusal(compiler, GrammarKind.JSON_SCHEMA, json.dumps(schema))


def test_an_output_that_could_not_end_is_refused(folder: Path) -> None:
    compiler = GrammarCompiler(lambda: GrammarVocabulary.load(folder, vocab_size=VOCAB, eos_token_ids=()))
    compiled = compiler.submit(Grammar(GrammarKind.REGEX, "a")).result(timeout=60)
    with pytest.raises(InvalidRequestError, match="end"):
        compiled.matcher((100,))
    compiled.matcher((EOS_TOKEN_ID,))
    compiler.close()


def test_a_tokenizer_that_cannot_be_read_refuses_grammars_only(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    compiler = GrammarCompiler(lambda: GrammarVocabulary.load(tmp_path, vocab_size=VOCAB, eos_token_ids={2}))
    assert "tokenizer" in refusal(compiler, GrammarKind.JSON_OBJECT, "")
    assert "tokenizer" in refusal(compiler, GrammarKind.REGEX, "a")
    compiler.close()


def test_a_compiled_grammar_is_found_again_and_the_oldest_is_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT", 2)
    compiler = GrammarCompiler(lambda: GrammarVocabulary.load(folder, vocab_size=VOCAB, eos_token_ids={2}))
    first, second, third = (Grammar(GrammarKind.REGEX, text) for text in ("a", "b", "c"))
    kept = compiler.submit(first).result(timeout=60)
    assert compiler.submit(first).result() is kept
    compiler.submit(second).result(timeout=60)
    assert compiler.submit(first).result() is kept  # used last, so `second` is the oldest
    compiler.submit(third).result(timeout=60)
    assert compiler.submit(first).result() is kept
    assert len(compiler._kept) == 2 and second not in compiler._kept
    refusal(compiler, GrammarKind.REGEX, "(")
    assert Grammar(GrammarKind.REGEX, "(") not in compiler._kept
    compiler.close()


def test_too_many_grammars_at_once_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 0)
    compiler = GrammarCompiler(lambda: GrammarVocabulary.load(folder, vocab_size=VOCAB, eos_token_ids={2}))
    with pytest.raises(OverloadedError):
        compiler.submit(Grammar(GrammarKind.REGEX, "a"))
    compiler.close()


def walk(matcher: GrammarMatcher, seed: int, steps: int) -> list[int]:
    """Tokens that a grammar allows, drawn."""
    rng, mask, taken = random.Random(seed), np.zeros(matcher.words, dtype=np.int32), []
    for _ in range(steps):
        matcher.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        taken.append(int(rng.choice(allowed[allowed != EOS_TOKEN_ID])))
        assert matcher.accept(taken[-1])
    return taken


def test_outputs_do_not_use_up_one_another_s_limits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library counts the states that all copies of a grammar have made."""
    grammar = Grammar(GrammarKind.REGEX, "(.*a.{12}b.*|.*c.{12}d.*)")

    def load() -> GrammarVocabulary:
        return GrammarVocabulary.load(folder, vocab_size=VOCAB, eos_token_ids={EOS_TOKEN_ID})

    roomy = GrammarCompiler(load)
    expected = [walk(roomy.submit(grammar).result(60).matcher(()), seed, 60) for seed in range(12)]
    monkeypatch.setattr(module, "_MOST_LEXER_STATES", 2000)
    tight = GrammarCompiler(load)
    compiled = tight.submit(grammar).result(60)
    assert [walk(compiled.matcher(()), seed, 60) for seed in range(12)] == expected
    assert compiled.start.worn
    again = tight.submit(grammar).result(60)
    assert again is not compiled
    assert not again.start.worn
    roomy.close()
    tight.close()
