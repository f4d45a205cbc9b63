"""config.json of a head, and the transformers configuration of its layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from outrider.core.errors import ConfigError, UnsupportedModelError

_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
    "vocab_size",
)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it is.

    Raises:
        ConfigError: it is missing, or no JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no object")
    return config


def layer_config(folder: Path, config: dict[str, Any]) -> Any:
    """The configuration of the head's layers, with transformers' defaults for what is not said.

    Args:
        folder: of the checkpoint, for messages.
        config: config.json, or the part of it that describes the layers.

    Raises:
        ConfigError: a value cannot be used.
        UnsupportedModelError: the layers are not of the Llama kind.
    """
    kind = config.get("model_type") or "llama"
    if kind not in _LLAMA_LIKE:
        raise UnsupportedModelError(
            f"{folder.name}: layers of type {kind!r} are not supported, only {', '.join(_LLAMA_LIKE)}"
        )
    for name in _SIZES:
        if config.get(name) is not None and whole_number(config, name, 0) == 0:
            raise ConfigError(f"{folder / 'config.json'}: {name} is 0")
    fields = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    try:
        layers = AutoConfig.for_model(kind, **fields)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from error
    if "sliding_attention" in (getattr(layers, "layer_types", None) or ()):
        raise UnsupportedModelError(f"{folder.name}: layers with a sliding window are not supported")
    if layers.hidden_act != "silu":
        raise UnsupportedModelError(
            f"{folder.name}: activation {layers.hidden_act!r} is not supported, only silu"
        )
    return layers


def whole_number(config: dict[str, Any], name: str, default: int) -> int:
    """A field that must be a whole number from 0 on.

    Raises:
        ConfigError: it is something else.
    """
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"config.json: {name} is {str(value)[:40]!r}, it must be a whole number from 0 on")
    return value
