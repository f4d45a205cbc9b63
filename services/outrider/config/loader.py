"""From YAML file and `--set path=value` to one checked configuration."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from outrider.config.explaining import explain, is_model, no_such, plain, shown
from outrider.config.schema import OutriderConfig
from outrider.config.secrets import hidden
from outrider.config.yaml_text import dump_yaml, parse_mapping, parse_yaml, text_of
from outrider.core.errors import ConfigError

DEMO = "demo.yaml"


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
        raise ConfigError(explain(error, given, OutriderConfig)) from None


def dump_config(config: OutriderConfig) -> str:
    """`config` as YAML that `load_config` reads back, secrets included: for files that nobody else reads."""
    return dump_yaml(config.model_dump(mode="json"))


def _read(path: Path | None) -> tuple[dict[str, Any], str]:
    if path is not None:
        return parse_mapping(text_of(path), str(path)), str(path)
    text = resources.files("outrider.config").joinpath(DEMO).read_text("utf-8")
    return parse_mapping(text, "the demo configuration"), "the demo configuration"


def _apply(data: dict[str, Any], override: str) -> None:
    """Write one override into `data`, which holds what the file said."""
    path, equals, text = override.partition("=")
    names = [name.strip() for name in path.split(".")]
    if not equals or not all(names):
        raise ConfigError(f"--set takes path.to.value=VALUE, got {hidden(repr(override))}")
    value = parse_yaml(text, f"the value of --set {path.strip()}")
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
                    f"--set {path}: {'.'.join(names[: depth + 1])} is {shown(place)}, not a mapping"
                )


def _kind_below(kind: Any, place: Mapping[str, Any], name: str, where: str, *, last: bool) -> Any:
    """The type of `name` inside a value of type `kind`; refuses names that cannot be there."""
    if is_model(kind):
        if name not in kind.model_fields:
            raise ConfigError(f"--set {_joined(where, name)}: {no_such(name, kind.model_fields, where)}")
        return plain(kind.model_fields[name].annotation)
    if typing.get_origin(kind) is dict:
        # A new name is taken only with its whole value: a misspelt one must not make a new drafter.
        if name not in place and not last:
            raise ConfigError(f"--set {_joined(where, name)}: {no_such(name, place, where)}")
        return plain(typing.get_args(kind)[1])
    raise ConfigError(
        f"--set {_joined(where, name)}: {where} is a single value, nothing can be set inside it"
    )


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
