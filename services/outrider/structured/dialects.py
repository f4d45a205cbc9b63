"""From the grammars that clients write to the one that the library compiles."""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from outrider.core.errors import InvalidRequestError
from outrider.core.params import Grammar, GrammarKind
from outrider.structured.matcher import brief

_MOST_RULES = 4096
"""Rules of a grammar, references of a schema. One may stand in the next, and compiling recurses."""
_STRICT: Any = {"lenient": False, "coerce_one_of": False}
"""A keyword that cannot be enforced is an error, whatever the schema says under x-guidance."""
_UNHEARD = re.compile(r"^\s*[\w?!-]+\s*\[[^\]\n]*\b(temperature|max_tokens)\s*=", re.MULTILINE)
"""Attributes of Lark rules that say how to sample: the request does."""


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
    references = _references(schema)
    if references > _MOST_RULES:
        raise wrong(f"must have at most {_MOST_RULES} $ref, got {references}")
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
    return LLMatcher.grammar_from_lark(lark)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f"is no JSON: {brief(str(error))}") from None


def _references(schema: object) -> int:
    count, rest = 0, [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            count += "$ref" in value
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
    return count
