"""A model's chat template, rendered as `transformers` renders it, without `transformers`.

The environment is that of `transformers.utils.chat_template_utils` (5.24): Jinja2, sandboxed and
immutable, with `trim_blocks`, `lstrip_blocks`, loop controls, `tojson`, `raise_exception` and
`strftime_now`. A test compares the outputs of both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.core.errors import ConfigError, InvalidRequestError
from outrider.wire.messages import ChatTurn

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """Lays out a conversation as the model was trained to read it."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        """`special_tokens`: variables that a template may use, such as `bos_token`.

        Raises:
            ConfigError: the template is not valid Jinja2.
        """
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template is not valid: line {error.lineno}: {error.message}"
            ) from error
        self._special_tokens = special_tokens

    def render(self, turns: Sequence[ChatTurn]) -> str:
        """The prompt, up to and with the header of the assistant's answer.

        Raises:
            InvalidRequestError: the template refuses the conversation.
        """
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", field="messages"
            ) from error


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The template of a model folder: `chat_template.jinja`, else that of `tokenizer_config.json`.

    None if the model has no template.

    Raises:
        ConfigError: a file cannot be read as what it should be.
    """
    path = folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    separate = folder / "chat_template.jinja"
    source = (
        separate.read_text(encoding="utf-8") if separate.is_file() else _default(config.get("chat_template"))
    )
    if source is None:
        return None
    tokens = {name: _token_text(config.get(name)) for name in _SPECIAL_TOKENS}
    return ChatTemplate(source, {name: text for name, text in tokens.items() if text is not None})


def _default(template: Any) -> str | None:
    """The template itself, or the one named "default" of several."""
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _token_text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training: here, plain text."""

    tags = {"generation"}  # noqa: RUF012 - the type that Jinja2 declares

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja2's own, it escapes no HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
