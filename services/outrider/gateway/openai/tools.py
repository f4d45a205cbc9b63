"""Tools that a chat may call: their schemas, the choice among them, and the grammar that forces one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from outrider.core.errors import InvalidRequestError
from outrider.core.limits import quoted
from outrider.core.params import Grammar
from outrider.gateway.openai.parameters import Body
from outrider.gateway.openai.structured import schema_grammar
from outrider.gateway.tool_calls import (
    FirstCallOnly,
    NamedReader,
    RequiredReader,
    ToolCallReader,
    ToolFormat,
)

MAX_TOOLS = 1024
_NAME = r"^[A-Za-z0-9_.-]{1,128}$"
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Of forced calls, as models are trained to write them: small ones go on with blanks for ever if they may."""
_MODES = ("none", "auto", "required")
_CHOICE: dict[str, Any] = {
    "anyOf": [
        {"enum": [*_MODES, None]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
            },
            "required": ["type", "function"],
        },
    ]
}
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords of JSON schema whose values are schemas by name."""
_DATA = ("enum", "const", "default", "examples")
"""Those whose values are no schemas."""


def _choice(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value in _MODES):
        return value
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(
            'must be "none", "auto", "required" or {"type": "function", "function": {"name": "..."}}'
        )
    return value


class Function(Body):
    """What a tool is called and takes."""

    name: str = Field(pattern=_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of an object; unset: none")
    strict: bool | None = Field(None, description="a forced call follows the schema in any case")


class Tool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function

    def shown(self) -> dict[str, Any]:
        """As a chat template reads it."""
        return self.model_dump(exclude_unset=True, exclude={"function": {"strict"}})


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What an answer may call, and so how it is read."""

    mode: Literal["none", "auto", "required", "named"] = "none"
    name: str = ""  # with "named"
    offered: frozenset[str] = frozenset()
    parallel: bool = True

    def reader(self, tool_format: ToolFormat | None) -> ToolCallReader | None:
        """For one answer; None: all of it is text."""
        reader: ToolCallReader | None = None
        if self.mode == "named":
            reader = NamedReader(self.name)
        elif self.mode == "required":
            reader = RequiredReader()
        elif self.mode == "auto" and tool_format is not None:
            reader = tool_format.reader(self.offered)
        return reader if reader is None or self.parallel else FirstCallOnly(reader)


class ToolFields(Body):
    """The fields of a request."""

    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS, description="functions that may be called")
    tool_choice: Annotated[
        str | dict[str, Any] | None, BeforeValidator(_choice, json_schema_input_type=Any)
    ] = Field(
        None,
        description="none, auto (the default with tools), required, or the function to call",
        json_schema_extra=_CHOICE,
    )
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most")

    def tool_plan(self) -> ToolPlan:
        """What the answer may call.

        Raises:
            InvalidRequestError: tools that contradict, or a choice that is none of them.
        """
        names = [tool.function.name for tool in self.tools or ()]
        self._check_tools(names)
        offered, parallel = frozenset(names), self.parallel_tool_calls is not False
        choice = self.tool_choice
        if isinstance(choice, dict):
            name = choice["function"]["name"]
            if name not in offered:
                raise InvalidRequestError(
                    f"tool_choice names {quoted(name)}, which is not among the tools", field="tool_choice"
                )
            return ToolPlan("named", name, offered, parallel)
        if choice == "required":
            if not names:
                raise InvalidRequestError('tool_choice "required" needs tools', field="tool_choice")
            return ToolPlan("required", "", offered, parallel)
        return ToolPlan("auto" if names and choice != "none" else "none", "", offered, parallel)

    def tool_grammar(self, plan: ToolPlan) -> Grammar | None:
        """What a forced answer must look like: the arguments of the named function, or a list of calls."""
        tools = [tool.function for tool in self.tools or ()]
        if plan.mode == "named":
            named = next(tool for tool in tools if tool.name == plan.name)
            return schema_grammar({"x-guidance": _LAYOUT, **_parameters(named)})
        if plan.mode == "required":
            return schema_grammar(_calls_schema(tools, parallel=plan.parallel))
        return None

    def shown_tools(self) -> tuple[dict[str, Any], ...]:
        """As a chat template reads them."""
        return tuple(tool.shown() for tool in self.tools or ())

    def _check_tools(self, names: Sequence[str]) -> None:
        for index, tool in enumerate(self.tools or ()):
            where = f"tools[{index}].function"
            if tool.function.name in names[:index]:
                raise InvalidRequestError(
                    f"{where}.name: there is another tool {quoted(tool.function.name)}", field=f"{where}.name"
                )
            kind = (tool.function.parameters or {}).get("type", "object")
            if kind != "object":
                raise InvalidRequestError(
                    f'{where}.parameters must be the schema of an object, with the type "object"',
                    field=f"{where}.parameters",
                )


def _parameters(tool: Function) -> dict[str, Any]:
    return {"type": "object", **tool.parameters} if tool.parameters else _NO_PARAMETERS


def _calls_schema(tools: Sequence[Function], *, parallel: bool) -> dict[str, Any]:
    """A list of calls, as vLLM has it. Each tool's schema keeps its own definitions, under its own name."""
    definitions = {}
    calls = []
    for index, tool in enumerate(tools):
        key = f"tool_{index}"
        definitions[key] = _moved(_parameters(tool), f"#/$defs/{key}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "parameters": {"$ref": f"#/$defs/{key}"}},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return {"x-guidance": _LAYOUT, **schema, **({} if parallel else {"maxItems": 1}), "$defs": definitions}


def _moved(schema: Any, root: str) -> Any:
    """The same schema with references that hold once it stands at `root`."""
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = root + value[1:]
        elif key in _MAPS and isinstance(value, dict):
            moved[key] = {name: _moved(item, root) for name, item in value.items()}
        else:
            moved[key] = value if key in _DATA else _moved(value, root)
    return moved
