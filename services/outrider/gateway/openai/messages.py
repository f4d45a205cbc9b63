"""Messages of a chat, and what its template is told besides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from outrider.core.errors import InvalidRequestError
from outrider.core.limits import quoted
from outrider.gateway.chat_template import OWN_VARIABLES
from outrider.gateway.openai import unsupported
from outrider.gateway.openai.parameters import Body
from outrider.wire.messages import Conversation

MAX_MESSAGES = 4096
MAX_DOCUMENTS = 4096
MAX_TEMPLATE_CHARS = 128 * 1024

_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]
}


def _text_of_content(value: Any) -> Any:
    """A string, or the text parts of a list, one a line as vLLM joins them."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return value
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                f'part {index} must be {{"type": "text", "text": "..."}}: only text is supported'
            )
        texts.append(part["text"])
    return "\n".join(texts)


class CalledFunction(Body):
    """What was called."""

    name: str
    arguments: str = Field("", description="JSON of an object")


class PastCall(Body):
    """A tool call of an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text_of_content, json_schema_input_type=Any)] = Field(
        "", json_schema_extra=_CONTENT
    )
    name: str | None = None
    tool_calls: list[PastCall] | None = Field(None, description="of the assistant: what it called")
    tool_call_id: str | None = Field(None, description="of a tool: the call that it answers")
    reasoning_content: str | None = Field(None, description="extension: what the assistant thought before")
    reasoning: str | None = Field(None, description="extension: another name of reasoning_content")

    def for_template(self, where: str) -> dict[str, Any]:
        """As a chat template reads it; arguments of calls are objects there.

        Raises:
            InvalidRequestError: a field that this role has not, or lacks.
        """
        unsupported.refuse(self.model_extra, unsupported.MESSAGE, f"{where}.")
        if self.tool_calls and self.role != "assistant":
            raise InvalidRequestError(
                f"{where}.tool_calls needs the role assistant, got {self.role}", field=f"{where}.tool_calls"
            )
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise InvalidRequestError(
                f"{where}.tool_call_id belongs to the role tool, which needs it",
                field=f"{where}.tool_call_id",
            )
        thought = self.reasoning_content if self.reasoning_content is not None else self.reasoning
        given = {
            "role": self.role,
            "content": self.content,
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            # Both names, as `transformers` has it: templates read one or the other.
            "reasoning_content": thought,
            "thinking": thought,
        }
        message: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.tool_calls:
            message["tool_calls"] = [
                _call_for_template(call, f"{where}.tool_calls[{index}]")
                for index, call in enumerate(self.tool_calls)
            ]
        return message


class TemplateFields(Body):
    """What a request tells the chat template."""

    chat_template: str | None = Field(
        None,
        max_length=MAX_TEMPLATE_CHARS,
        description="extension: instead of the model's; refused unless gateway.trust_request_chat_template",
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="extension: further variables of the chat template"
    )
    add_generation_prompt: bool | None = Field(
        None, description="extension; false: no header of an answer after the messages"
    )
    continue_final_message: bool | None = Field(
        None, description="extension: the answer goes on from the end of the last message"
    )
    documents: list[dict[str, Any]] | None = Field(
        None, max_length=MAX_DOCUMENTS, description="extension: texts for the chat template to show"
    )

    def conversation(
        self, messages: Sequence[Message], tools: tuple[dict[str, Any], ...], *, reads_calls: bool
    ) -> Conversation:
        """What is laid out; `reads_calls`: calls will be looked for in the answer's text.

        Raises:
            InvalidRequestError: fields that contradict.
        """
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt cannot both be true",
                field="continue_final_message",
            )
        variables = self.chat_template_kwargs or {}
        for name in OWN_VARIABLES.intersection(variables):
            raise InvalidRequestError(
                f"chat_template_kwargs must not set {name}", field=f"chat_template_kwargs.{name}"
            )
        return Conversation(
            messages=tuple(
                message.for_template(f"messages[{index}]") for index, message in enumerate(messages)
            ),
            tools=tools,
            documents=tuple(self.documents or ()),
            template=self.chat_template,
            template_kwargs=variables,
            add_generation_prompt=self.add_generation_prompt is not False and not self.continue_final_message,
            continue_final_message=bool(self.continue_final_message),
            reads_calls=reads_calls,
        )


def _call_for_template(call: PastCall, where: str) -> dict[str, Any]:
    field = f"{where}.function.arguments"
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(
            f"{field} must be JSON of an object, got {quoted(call.function.arguments)}", field=field
        )
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.function.name, "arguments": arguments},
    }
