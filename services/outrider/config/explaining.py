"""What is wrong with a configuration, in words: which field, what was given, what is allowed."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from outrider.config.secrets import hidden

Where = tuple[str | int, ...]
"""Names and numbers that lead to a value."""


def explain(error: ValidationError, source: str, kind: type[BaseModel]) -> str:
    """What to tell whoever wrote `source`, of a configuration of this `kind`."""
    return joined(complaints(error, kind), source)


def complaints(error: ValidationError, kind: type[BaseModel], at: Where = ()) -> list[str]:
    """A line for each value that is wrong. `kind` is the model, `at` its place in the file."""
    return [_complaint(dict(detail), kind, at) for detail in error.errors(include_url=False)]


def joined(lines: Sequence[str], source: str) -> str:
    """Complaints about `source` as one text."""
    return f"{source}: " + lines[0] if len(lines) == 1 else f"{source}:\n  " + "\n  ".join(lines)


def unknown_keys(data: Any, kind: Any, at: Where = ()) -> Iterator[str]:
    """A line for each key that a model which ignores what it does not know would ignore."""
    kind = plain(kind)
    if is_model(kind) and isinstance(data, Mapping):
        for name, value in data.items():
            if name in kind.model_fields:
                yield from unknown_keys(value, kind.model_fields[name].annotation, (*at, name))
            else:
                yield f"{path_of((*at, name))}: {no_such(str(name), kind.model_fields, path_of(at))}"
    elif typing.get_origin(kind) is list and isinstance(data, list):
        for number, value in enumerate(data):
            yield from unknown_keys(value, typing.get_args(kind)[0], (*at, number))


def path_of(where: Where) -> str:
    """As errors name it."""
    return ".".join(map(str, where))


def no_such(name: str, allowed: Mapping[str, Any], where: str) -> str:
    """Of a name that is not among the `allowed`."""
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    names = ", ".join(allowed) or "(none)"
    return f"there is no {name!r} {f'in {where}' if where else 'here'}; {hint}Allowed: {names}"


def shown(value: Any) -> str:
    """A value, shortened, without passwords."""
    text = hidden(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."


def plain(annotation: Any) -> Any:
    """`annotation` without `| None` and Annotated."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return plain(kinds[0]) if len(kinds) == 1 else annotation
    return annotation


def is_model(kind: Any) -> bool:
    """Whether it is a pydantic model's class."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _complaint(detail: dict[str, Any], kind: type[BaseModel], at: Where) -> str:
    inside: Where = tuple(detail["loc"])
    path = path_of((*at, *inside))
    if detail["type"] == "extra_forbidden":
        parent = _model_at(inside[:-1], kind)
        allowed = parent.model_fields if parent else {}
        return f"{path}: {no_such(str(inside[-1]), allowed, path_of((*at, *inside[:-1])))}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path}: {message[:1].lower()}{message[1:]}, got {shown(detail['input'])}"


def _model_at(where: Where, kind: Any) -> type[BaseModel] | None:
    for name in where:
        if is_model(kind) and name in kind.model_fields:
            kind = plain(kind.model_fields[name].annotation)
        elif typing.get_origin(kind) is dict:
            kind = plain(typing.get_args(kind)[1])
        elif typing.get_origin(kind) is list:
            kind = plain(typing.get_args(kind)[0])
        else:
            return None
    return kind if is_model(kind) else None
