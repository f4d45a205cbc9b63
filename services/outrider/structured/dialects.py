"""From the grammars that clients write to the one that the library compiles."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from outrider.core.errors import InvalidRequestError
from outrider.core.params import Grammar, GrammarKind
from outrider.structured.matcher import brief

_MOST_RULES = 4096
"""Rules of a grammar, references of a schema. One may stand in the next, and compiling recurses."""
_MOST_MULTIPLE = 10_000
"""Least common multiple of all `multipleOf`: each remainder is a state that no limit counts."""
_STRICT: Any = {"lenient": False, "coerce_one_of": False}
"""A keyword that cannot be enforced is an error, whatever the schema says under x-guidance."""
_UNHEARD = re.compile(r"^\s*[\w?!-]+\s*\[[^\]\n]*\b(temperature|max_tokens)\s*=", re.MULTILINE)
"""Attributes of Lark rules that say how to sample: the request does."""
_EMBEDDED = re.compile(r"%json\s*(?={)")
"""A schema within a grammar begins after it."""


def library_grammar(grammar: Grammar) -> str:
    """The library's form of a grammar; whether it compiles is not known yet.

    Raises:
        InvalidRequestError: it is not written as its kind demands.
    """
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return LLMatcher.grammar_from_json_schema({"type": "object"})
        case GrammarKind.JSON_SCHEMA:
            return _json_schema(grammar.text)
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.CHOICE:
            return _choice(grammar.text)
        case GrammarKind.GRAMMAR:
            return _context_free(grammar.text)


def wrong(problem: str) -> InvalidRequestError:
    """A grammar that cannot be used, and why."""
    return InvalidRequestError(f"grammar {problem}", field="grammar")


def _json_schema(text: str) -> str:
    schema = _json(text)
    if not isinstance(schema, dict | bool):
        raise wrong("must be a JSON schema: an object, or true or false")
    _check_schema(schema)
    if schema is False:
        raise wrong("allows no output: the schema is false")
    try:
        return LLMatcher.grammar_from_json_schema({} if schema is True else schema, overrides=_STRICT)
    except ValueError as error:
        raise wrong(f"is no JSON schema that is supported: {brief(str(error))}") from None


def _choice(text: str) -> str:
    choices = _json(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
        raise wrong("must be a JSON list of at least one string for a choice")
    # A string of Lark is one of JSON.
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(one) for one in choices))


def _context_free(text: str) -> str:
    lines = text.count("\n") + 1
    if lines > _MOST_RULES:
        raise wrong(f"must have at most {_MOST_RULES} lines, got {lines}")
    try:
        lark = any_to_lark(text)
    except Exception as error:  # noqa: BLE001  # it raises whatever its parser stumbles over
        raise wrong(f"is neither Lark (no rule `start:`) nor EBNF: {brief(str(error))}") from None
    unheard = _UNHEARD.search(lark)
    if unheard:
        raise wrong(f"must not set {unheard[1]}: the request does")
    for embedded in _EMBEDDED.finditer(lark):
        _check_schema(_json_at(lark, embedded.end()))
    return LLMatcher.grammar_from_lark(lark)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f"is no JSON: {brief(str(error))}") from None


def _json_at(text: str, start: int) -> Any:
    """The JSON value that begins there; None if there is none, which the library will say."""
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        return None


def _check_schema(schema: object) -> None:
    """Bound what the library does not."""
    references, multiple = 0, 1
    for part in _objects(schema):
        references += "$ref" in part
        step = part.get("multipleOf")
        if isinstance(step, int | float) and not isinstance(step, bool) and 0 < step < math.inf:
            multiple = math.lcm(multiple, _digits(step))
    if references > _MOST_RULES:
        raise wrong(f"must have at most {_MOST_RULES} $ref, got {references}")
    if multiple > _MOST_MULTIPLE:
        raise wrong(f"must have a least common multiple of all multipleOf of at most {_MOST_MULTIPLE}")


def _digits(number: float) -> int:
    """A number above 0 without its decimal point: 0.25 becomes 25."""
    numerator, denominator = Decimal(str(number)).as_integer_ratio()
    while denominator > 1:  # a divisor of a power of 10
        factor = 10 // math.gcd(denominator, 10)
        numerator, denominator = numerator * factor, denominator // math.gcd(denominator, 10)
    return numerator


def _objects(value: object) -> Iterator[dict[str, Any]]:
    """All objects within a JSON value."""
    rest = [value]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            yield part
            rest.extend(part.values())
        elif isinstance(part, list):
            rest.extend(part)
