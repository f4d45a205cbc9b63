"""From YAML file and `--set path=value` to one checked configuration."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from outrider.config.schema import OutriderConfig
from outrider.config.secrets import hidden
from outrider.core.errors import ConfigError

DEMO = "demo.yaml"


class _Loader(yaml.SafeLoader):
    """Safe YAML with the booleans and numbers of YAML 1.2 (`off` is a word) and no duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands here twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if not tag.endswith((":bool", ":float", ":timestamp"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$", re.I), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `_Loader`, or any other reader of YAML, would take for something else."""


_Dumper.yaml_implicit_resolvers = {
    first: [
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()),
        *_Loader.yaml_implicit_resolvers.get(first, ()),
    ]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
}


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> OutriderConfig:
    """The configuration in `path` (None: the demo's), changed by `overrides`.

    Args:
        path: a YAML file; what it leaves out has the schema's default.
        overrides: `path.to.value=VALUE`, VALUE in YAML. The path may lead through the names of
            drafters; `drafters.NAME={...}` adds one, `drafters.NAME=null` removes one.

    Raises:
        ConfigError: which value is wrong, what was given, what is allowed.
    """
    data, source = _read(path)
    for override in overrides:
        _apply(data, override)
    given = f"{source} with --set" if overrides else source
    try:
        return OutriderConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, given)) from None


def dump_config(config: OutriderConfig) -> str:
    """`config` as YAML that `load_config` reads back, secrets included: for files that nobody else reads."""
    text: str = yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False)
    return text


def _read(path: Path | None) -> tuple[dict[str, Any], str]:
    if path is None:
        text, source = (
            resources.files("outrider.config").joinpath(DEMO).read_text("utf-8"),
            "the demo configuration",
        )
    else:
        source = str(path)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the configuration {source}: {error}") from error
    data = _parse(text, source)
    if data is None:
        return {}, source
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: a mapping is expected at the top, got {_shown(data)}")
    return data, source


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader  # nosec B506
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {hidden(' '.join(str(error).split()))}") from None


def _apply(data: dict[str, Any], override: str) -> None:
    """Write one override into `data`, which holds what the file said."""
    path, equals, text = override.partition("=")
    names = [name.strip() for name in path.split(".")]
    if not equals or not all(names):
        raise ConfigError(f"--set takes path.to.value=VALUE, got {hidden(repr(override))}")
    value = _parse(text, f"the value of --set {path.strip()}")
    kind: Any = OutriderConfig
    place: Any = data
    for depth, name in enumerate(names):
        where = ".".join(names[:depth])
        last = depth == len(names) - 1
        kind = _kind_below(kind, place, name, where, last=last)
        if last and value is None and where == "drafters":
            place.pop(name, None)
        elif last:
            place[name] = value
        else:
            if place.get(name) is None:
                place[name] = {}
            place = place[name]
            if not isinstance(place, dict):
                raise ConfigError(
                    f"--set {path}: {'.'.join(names[: depth + 1])} is {_shown(place)}, not a mapping"
                )


def _kind_below(kind: Any, place: Mapping[str, Any], name: str, where: str, *, last: bool) -> Any:
    """The type of `name` inside a value of type `kind`; refuses names that cannot be there."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if name not in kind.model_fields:
            raise ConfigError(f"--set {_joined(where, name)}: {_no_such(name, kind.model_fields, where)}")
        return _plain(kind.model_fields[name].annotation)
    if typing.get_origin(kind) is dict:
        # A new name is taken only with its whole value: a misspelt one must not make a new drafter.
        if name not in place and not last:
            raise ConfigError(f"--set {_joined(where, name)}: {_no_such(name, place, where)}")
        return _plain(typing.get_args(kind)[1])
    raise ConfigError(
        f"--set {_joined(where, name)}: {where} is a single value, nothing can be set inside it"
    )


def _plain(annotation: Any) -> Any:
    """`annotation` without `| None` and Annotated."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return _plain(kinds[0]) if len(kinds) == 1 else annotation
    return annotation


def _explain(error: ValidationError, source: str) -> str:
    lines = [_explain_one(dict(detail)) for detail in error.errors(include_url=False)]
    return f"{source}: " + lines[0] if len(lines) == 1 else f"{source}:\n  " + "\n  ".join(lines)


def _explain_one(detail: dict[str, Any]) -> str:
    where = [str(part) for part in detail["loc"]]
    path = ".".join(where)
    if detail["type"] == "extra_forbidden":
        parent = _model_at(where[:-1])
        return f"{path}: {_no_such(where[-1], parent.model_fields if parent else {}, '.'.join(where[:-1]))}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path}: {message[:1].lower()}{message[1:]}, got {_shown(detail['input'])}"


def _model_at(where: Sequence[str]) -> type[BaseModel] | None:
    kind: Any = OutriderConfig
    for name in where:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and name in kind.model_fields:
            kind = _plain(kind.model_fields[name].annotation)
        elif typing.get_origin(kind) is dict:
            kind = _plain(typing.get_args(kind)[1])
        else:
            return None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _no_such(name: str, allowed: Mapping[str, Any], where: str) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    names = ", ".join(allowed) or "(none)"
    return f"there is no {name!r} {f'in {where}' if where else 'here'}; {hint}Allowed: {names}"


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(value: Any) -> str:
    text = hidden(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
