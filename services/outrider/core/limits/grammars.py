"""Bounds of a grammar's text. What is too large or too deep is refused before any parser sees it."""

from __future__ import annotations

import json
import re

from outrider.core.errors import InvalidRequestError
from outrider.core.limits.values import count, encodable
from outrider.core.params import Grammar, GrammarKind

MAX_GRAMMAR_CHARS = 128 * 1024
MAX_GRAMMAR_NESTING = 64
"""Brackets within brackets: parsers and compilers recurse."""
MAX_CHOICES = 1024
MAX_CHOICE_CHARS = 1024

# Brackets that count. Escaped ones do not, and in JSON neither do those in strings.
_STRUCTURE = re.compile(r"\\.|[\[({\])}]", re.DOTALL)
_JSON_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)
_JSON = (GrammarKind.JSON_SCHEMA, GrammarKind.CHOICE)


def check_grammar(grammar: Grammar) -> None:
    """Length and nesting of the text, and that JSON is JSON. Whether it compiles is another matter."""
    text = grammar.text
    if grammar.kind is GrammarKind.JSON_OBJECT:
        if text:
            raise _wrong("must have no text for a JSON object")
        return
    if not text:
        raise _wrong(f"needs a text to be a {grammar.kind.value}")
    if len(text) > MAX_GRAMMAR_CHARS:
        raise _wrong(f"must have at most {MAX_GRAMMAR_CHARS} characters, got {len(text)}")
    if "\0" in text:
        raise _wrong("must not contain the character U+0000")
    encodable("grammar", text)
    depth = _nesting(text, _JSON_STRUCTURE if grammar.kind in _JSON else _STRUCTURE)
    if depth > MAX_GRAMMAR_NESTING:
        raise _wrong(f"must be nested at most {MAX_GRAMMAR_NESTING} deep, got {depth}")
    if grammar.kind in _JSON:
        _check_json(grammar)


def _check_json(grammar: Grammar) -> None:
    try:
        value = json.loads(grammar.text)
    except ValueError as error:
        raise _wrong(f"is no JSON: {error}") from None
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        if not isinstance(value, dict | bool):
            raise _wrong("must be a JSON schema: an object, or true or false")
        return
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise _wrong("must be a JSON list of at least one string for a choice")
    count("grammar", value, MAX_CHOICES)
    for item in value:
        if not 1 <= len(item) <= MAX_CHOICE_CHARS:
            raise _wrong(f"must hold choices of 1 to {MAX_CHOICE_CHARS} characters, got one of {len(item)}")


def _nesting(text: str, structure: re.Pattern[str]) -> int:
    depth = deepest = 0
    for found in structure.finditer(text):
        if found[0] in "[({":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in "])}":
            depth -= 1
    return deepest


def _wrong(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"grammar {problem}", field="grammar")
