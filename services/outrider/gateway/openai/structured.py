"""What an answer must look like: `response_format`, `structured_outputs`, `guided_*`.

Shapes are checked here, sizes by core/limits, and whether a grammar compiles by the verifier, before any
token. All three reach the client as an error that names the field it used.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from outrider.core.errors import InvalidRequestError
from outrider.core.limits import MAX_CHOICE_CHARS, MAX_CHOICES, MAX_GRAMMAR_CHARS, check_grammar, quoted
from outrider.core.params import Grammar, GrammarKind
from outrider.gateway.openai.parameters import Body, listed, noted

_FORMATS = ("text", "json_object", "json_schema")
_NOT_SUPPORTED = {
    "disable_fallback": (None, False),
    "disable_any_whitespace": (None, False),
    "disable_additional_properties": (None, False),
    "whitespace_pattern": (None,),
    "structural_tag": (None,),
}
"""Of vLLM's `structured_outputs`, with the values that mean "as if it were not there"."""


def _schema(value: Any) -> Any:
    """A JSON schema, or one written as a string."""
    if isinstance(value, str):
        try:
            check_grammar(Grammar(GrammarKind.JSON_SCHEMA, value))
        except InvalidRequestError as error:
            raise ValueError(str(error).removeprefix("grammar ")) from None
        value = json.loads(value)
    if value is not None and not isinstance(value, dict):
        raise ValueError("must be a JSON schema: an object")
    return value


def _format(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in _FORMATS:
        raise ValueError(f"type {quoted(kind)} is not supported: it must be one of {', '.join(_FORMATS)}")
    return value


Schema = Annotated[dict[str, Any], BeforeValidator(_schema, json_schema_input_type=dict[str, Any] | str)]
Text = Annotated[str, Field(min_length=1, json_schema_extra=noted(maxLength=MAX_GRAMMAR_CHARS))]
Choices = Annotated[
    list[str],
    Field(
        min_length=1,
        json_schema_extra=listed(
            {"type": "string", "minLength": 1, "maxLength": MAX_CHOICE_CHARS}, MAX_CHOICES, least=1
        ),
    ),
]


class JsonSchema(Body):
    """A schema with a name."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = Field(None, description="the answer follows the schema in any case")


class ResponseFormat(Body):
    """OpenAI's way to say it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """vLLM's way to say it: one of these."""

    model_config = ConfigDict(extra="forbid")

    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = Field(None, description="EBNF or Lark")
    json_object: bool | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: Any = None

    def grammars(self) -> list[Grammar]:
        """What is asked for.

        Raises:
            InvalidRequestError: an option that is not supported.
        """
        for name, neutral in _NOT_SUPPORTED.items():
            if getattr(self, name) not in neutral:
                raise InvalidRequestError(
                    f"structured_outputs.{name} is not supported: leave it out",
                    field=f"structured_outputs.{name}",
                )
        found = _grammars(self.json_, self.regex, self.choice, self.grammar)
        if self.json_object:
            found.append(Grammar(GrammarKind.JSON_OBJECT))
        return found


class StructuredFields(Body):
    """The fields of a request."""

    response_format: Annotated[ResponseFormat | None, BeforeValidator(_format)] = Field(
        None, description="the answer is JSON, or JSON that follows a schema"
    )
    structured_outputs: StructuredOutputs | None = Field(
        None,
        description="extension: the answer follows a schema, a regular expression, a choice or a grammar",
    )
    guided_json: Schema | None = Field(None, description="extension: older name of structured_outputs.json")
    guided_regex: Text | None = Field(None, description="extension: older name of structured_outputs.regex")
    guided_choice: Choices | None = Field(
        None, description="extension: older name of structured_outputs.choice"
    )
    guided_grammar: Text | None = Field(
        None, description="extension: older name of structured_outputs.grammar"
    )

    def structure(self) -> tuple[Grammar, str] | None:
        """The grammar and the field that asks for it; None if the answer is free.

        Raises:
            InvalidRequestError: an option that is not supported, or more than one grammar.
        """
        found: list[tuple[Grammar, str]] = []
        if self.response_format is not None:
            found += [(grammar, "response_format") for grammar in _of_format(self.response_format)]
        if self.structured_outputs is not None:
            given = self.structured_outputs.grammars()
            if not given:
                raise InvalidRequestError(
                    "structured_outputs must have one of json, regex, choice, grammar and json_object",
                    field="structured_outputs",
                )
            found += [(grammar, "structured_outputs") for grammar in given]
        for name, values in (
            ("guided_json", (self.guided_json, None, None, None)),
            ("guided_regex", (None, self.guided_regex, None, None)),
            ("guided_choice", (None, None, self.guided_choice, None)),
            ("guided_grammar", (None, None, None, self.guided_grammar)),
        ):
            found += [(grammar, name) for grammar in _grammars(*values)]
        if len(found) > 1:
            raise InvalidRequestError(
                "only one structure can be asked for, got "
                + " and ".join(f"{name} ({grammar.kind.value})" for grammar, name in found),
                field=found[1][1],
            )
        return found[0] if found else None


def schema_grammar(schema: dict[str, Any]) -> Grammar:
    """JSON that follows `schema`; the order of its keys is kept."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))


def _of_format(given: ResponseFormat) -> list[Grammar]:
    if given.type != "json_schema":
        if given.json_schema is not None:
            raise InvalidRequestError(
                f"response_format.json_schema needs the type json_schema, got {given.type}",
                field="response_format.json_schema",
            )
        return [Grammar(GrammarKind.JSON_OBJECT)] if given.type == "json_object" else []
    if given.json_schema is None:
        raise InvalidRequestError(
            "response_format of the type json_schema needs a json_schema",
            field="response_format.json_schema",
        )
    return [schema_grammar(given.json_schema.schema_)]


def _grammars(
    schema: dict[str, Any] | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> list[Grammar]:
    found = []
    if schema is not None:
        found.append(schema_grammar(schema))
    if regex is not None:
        found.append(Grammar(GrammarKind.REGEX, regex))
    if choice is not None:
        found.append(Grammar(GrammarKind.CHOICE, json.dumps(choice, ensure_ascii=False)))
    if grammar is not None:
        found.append(Grammar(GrammarKind.GRAMMAR, grammar))
    return found
