"""A model's chat template, rendered as `transformers` renders it, without `transformers`."""

from __future__ import annotations

import json
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from outrider.core.errors import ConfigError, InvalidRequestError
from outrider.gateway.template_sandbox import SandboxedTemplate, TemplateLimitError
from outrider.gateway.tool_calls import ToolFormat, detect
from outrider.wire.messages import Conversation

OWN_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "_step"}
)
"""What `chat_template_kwargs` may not set."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MOST_COMPILED = 16
"""Templates of requests that are kept."""
_MOST_QUOTED = 500
"""Characters of what a template says when it refuses: it may repeat all that it was given."""
_REFUSALS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TemplateLimitError,
    TypeError,
    ValueError,
)
"""What a template raises on a conversation that it was not made for."""


class ChatTemplate:
    """Lays out a conversation as the model was trained to read it."""

    def __init__(
        self, source: str, special_tokens: dict[str, str], tool_use: ChatTemplate | None = None
    ) -> None:
        """`special_tokens`: variables that a template may use, such as `bos_token`; `tool_use`: another
        template for conversations with tools.

        Raises:
            ConfigError: the template is not valid Jinja2.
        """
        try:
            self._template = SandboxedTemplate(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template is not valid: line {error.lineno}: {error.message}"
            ) from error
        except RecursionError as error:
            raise ConfigError("the chat template is not valid: it is nested too deeply") from error
        self._source = source
        self._special_tokens = special_tokens
        self._tool_use = tool_use
        self.replaced = lru_cache(_MOST_COMPILED)(self._replaced)
        """Another template for the same model; raises InvalidRequestError if it is not valid Jinja2."""

    @property
    def tool_format(self) -> ToolFormat | None:
        """The format that it asks the model to write calls in, if it can be read."""
        return detect(self._source) if self._tool_use is None else self._tool_use.tool_format

    def _replaced(self, source: str) -> ChatTemplate:
        try:
            return ChatTemplate(source, self._special_tokens)
        except ConfigError as error:
            raise InvalidRequestError(str(error), field="chat_template") from None

    def render(self, conversation: Conversation) -> str:
        """The prompt, as far as the model is to go on from.

        Raises:
            InvalidRequestError: the template refuses the conversation, or would leave out a part of it.
        """
        if conversation.tools and self._tool_use is not None:
            return self._tool_use.render(conversation)
        self._check_shown(conversation)
        messages = [self._message(message) for message in conversation.messages]
        mark = ""
        if conversation.continue_final_message:
            mark = f"<{secrets.token_hex(16)}> "
            messages[-1]["content"] += mark
        # As `transformers` has it, a given name wins over that of a special token.
        variables = {
            **self._special_tokens,
            **conversation.template_kwargs,
            "messages": messages,
            "tools": list(conversation.tools) or None,
            "documents": list(conversation.documents) or None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        try:
            text = self._template.render(variables)
            text.encode()  # escapes in arguments of calls can spell half a surrogate pair
        except _REFUSALS as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {str(error)[:_MOST_QUOTED]}",
                field="messages",
            ) from error
        return _cut(text, mark) if mark else text

    def _check_shown(self, conversation: Conversation) -> None:
        """A template that never looks at something would leave it out in silence."""
        reads = self._template.reads
        for field, given in (("tools", conversation.tools), ("documents", conversation.documents)):
            if given and field not in reads:
                raise InvalidRequestError(
                    f"the model's chat template has no place for {field}: the model would never see them",
                    field=field,
                )
        if "tool_calls" in self._source:
            return
        for index, message in enumerate(conversation.messages):
            if message.get("tool_calls"):
                raise InvalidRequestError(
                    "the model's chat template has no place for tool calls: the model would never see them",
                    field=f"messages[{index}].tool_calls",
                )

    def _message(self, message: Any) -> dict[str, Any]:
        as_system = message["role"] == "developer" and "developer" not in self._source
        return {**message, "role": "system" if as_system else message["role"]}


def _cut(text: str, mark: str) -> str:
    """The text up to the end of the last message, where `mark` was put.

    If the template trims messages, the mark has lost its last space, and the message loses its own.
    """
    found = text.rfind(mark.rstrip())
    if found < 0:
        raise InvalidRequestError(
            "the model's chat template does not show the end of the last message, so it cannot be continued",
            field="continue_final_message",
        )
    return text[:found] if text.startswith(mark, found) else text[:found].rstrip()


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The template of a model folder: `chat_template.jinja`, else that of `tokenizer_config.json`.

    One named "tool_use" is taken for conversations with tools. None if the model has no template.

    Raises:
        ConfigError: a file cannot be read as what it should be.
    """
    path = folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    named = _named(config.get("chat_template"))
    for name, place in (
        ("default", folder / "chat_template.jinja"),
        ("tool_use", folder / "additional_chat_templates" / "tool_use.jinja"),
    ):
        if place.is_file():
            named[name] = place.read_text(encoding="utf-8")
    if "default" not in named:
        return None
    given = {name: _token_text(config.get(name)) for name in _SPECIAL_TOKENS}
    tokens = {name: text for name, text in given.items() if text is not None}
    tool_use = ChatTemplate(named["tool_use"], tokens) if "tool_use" in named else None
    return ChatTemplate(named["default"], tokens, tool_use)


def _named(templates: Any) -> dict[str, str]:
    """Templates by name; a single one is the default."""
    if isinstance(templates, str):
        return {"default": templates}
    if not isinstance(templates, list):
        return {}
    return {entry["name"]: entry["template"] for entry in templates if "name" in entry}


def _token_text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
