"""Where chat templates run: the environment that `transformers` gives them, and a bound on their work.

The environment is that of `transformers.utils.chat_template_utils` (5.24): Jinja2, sandboxed and
immutable, with `trim_blocks`, `lstrip_blocks`, loop controls, `tojson`, `raise_exception` and
`strftime_now`. A test compares the outputs of both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_STEPS = 1_000_000
"""Passes through loops and macros in one rendering."""
MOST_CHARACTERS = 64 * 1024 * 1024
"""Of what is rendered."""

_STEP = "_step"


class TemplateLimitError(Exception):
    """A rendering takes too many steps, or becomes too long."""


class SandboxedTemplate:
    """A template, compiled."""

    def __init__(self, source: str) -> None:
        """Raises jinja2.TemplateSyntaxError: it is none."""
        tree = _ENVIRONMENT.parse(source)
        self.reads = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")
        """Names of the variables that it looks at."""
        _count_steps(tree)
        self._template = _ENVIRONMENT.from_string(tree)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text.

        Raises:
            TemplateLimitError: it takes too long or becomes too long.
            Exception: whatever the template raises on these variables.
        """
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate({**variables, _STEP: _Steps()}):
            length += len(piece)
            if length > MOST_CHARACTERS:
                raise TemplateLimitError(f"it renders more than {MOST_CHARACTERS} characters")
            pieces.append(piece)
        return "".join(pieces)


class _Steps:
    """Counts the steps of one rendering."""

    def __init__(self) -> None:
        self._taken = 0

    def __call__(self) -> None:
        self._taken += 1
        if self._taken > MOST_STEPS:
            raise TemplateLimitError(f"it takes more than {MOST_STEPS} steps")


def _count_steps(tree: nodes.Template) -> None:
    """Have every pass through a loop or a macro counted: unlike a clock, that refuses the same always."""
    blocks: list[nodes.For | nodes.Macro] = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
    for block in blocks:
        call = nodes.Call(nodes.Name(_STEP, "load"), [], [], None, None)
        step = nodes.ExprStmt(call)
        step.set_lineno(block.lineno, override=True)
        step.set_environment(_ENVIRONMENT)
        block.body.insert(0, step)


def _make_environment() -> ImmutableSandboxedEnvironment:
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


_ENVIRONMENT = _make_environment()
