"""YAML 1.2 as people mean it, and back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from outrider.config.explaining import shown
from outrider.config.secrets import hidden
from outrider.core.errors import ConfigError


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


def parse_yaml(text: str, source: str) -> Any:
    """What `text` holds; `source` is how errors call it.

    Raises:
        ConfigError: not YAML, or a key stands twice in one mapping.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader  # nosec B506
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {hidden(' '.join(str(error).split()))}") from None


def text_of(path: Path) -> str:
    """What the file holds.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """As `parse_yaml`, of a text that holds names with values; none at all if it is empty.

    Raises:
        ConfigError: as `parse_yaml`, or it is something else.
    """
    data = parse_yaml(text, source)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: a mapping is expected at the top, got {shown(data)}")
    return data


def dump_yaml(data: Any) -> str:
    """`data` as YAML that every reader, of 1.1 too, takes for the same."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False)
    return text
