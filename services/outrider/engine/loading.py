"""From a local checkpoint folder to a runner. Safetensors only, no code of the checkpoint is ever run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from outrider.config.schema import EngineConfig
from outrider.core.errors import ConfigError, UnsupportedModelError
from outrider.engine.generic import GenericRunner
from outrider.engine.lean import LeanRunner, is_lean
from outrider.engine.parallel.group import Group
from outrider.engine.parallel.shard import part_of
from outrider.engine.runner import Runner

SUPPORTED = (
    "cohere2",
    "deepseek_v3",
    "gemma2",
    "gemma3_text",
    "glm4",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "nemotron",
    "olmo2",
    "opt",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "stablelm",
    "starcoder2",
)
"""Model types whose packed forward was verified against the plain one."""

_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def load_config(folder: Path) -> Any:
    """The transformers config of a folder, if its architecture is supported.

    Raises:
        ConfigError: there is no readable config.json.
        UnsupportedModelError: names the architecture and what is supported.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{folder} is no model folder: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    model_type = raw.get("model_type") if isinstance(raw, dict) else None
    if model_type not in SUPPORTED:
        raise UnsupportedModelError(
            f"model type {model_type!r} of {folder.name} is not supported; "
            f"supported are {', '.join(SUPPORTED)}"
        )
    config = transformers.AutoConfig.from_pretrained(  # a local folder  # nosec B615
        folder, local_files_only=True, trust_remote_code=False
    )
    length_dependent = _rope_types(config) & _LENGTH_DEPENDENT_ROPE
    if length_dependent:
        raise UnsupportedModelError(
            f"{folder.name} scales its rotary embedding by the length of the whole batch "
            f"(rope_type {sorted(length_dependent)}), which packed sequences cannot share"
        )
    return config


def load_runner(
    folder: Path,
    config: Any,
    *,
    dtype: torch.dtype,
    device: str,
    slots: int,
    lean: bool,
    head_rows: torch.Tensor | None,
    group: Group | None = None,
) -> Runner:
    """Load the weights and choose the way to run them.

    Args:
        folder: config.json and *.safetensors.
        config: from load_config.
        dtype: of weights, activations and KV.
        device: torch device.
        slots: token slots of the pool.
        lean: take the lean forward where the model has one.
        head_rows: restrict the output head to these vocabulary ids.
        group: the ranks that share the model (see `parallel.sizes.check_sizes`); of the weights only this
            one's part is read.

    Raises:
        ConfigError: there are no safetensors weights, or they do not fit.
    """
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder} has no *.safetensors weights; other formats are not loaded")
    transformers.utils.logging.disable_progress_bar()
    try:
        with part_of(group) as told:
            model = transformers.AutoModelForCausalLM.from_pretrained(  # a local folder  # nosec B615
                folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                **told,
            )
            model = model.eval().requires_grad_(False).to(device)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the weights of {folder} cannot be loaded: {error}") from error
    if lean and is_lean(config):
        return LeanRunner(model, slots, head_rows, group)
    return GenericRunner(model, slots, head_rows)


def pool_slots(config: EngineConfig) -> int:
    """Token slots of the pool; block 0 comes on top of what can be used."""
    return (config.pool_tokens // config.block_size + 1) * config.block_size


def eos_token_ids(folder: Path, config: Any) -> frozenset[int]:
    """End tokens: those of generation_config.json if it names any, else those of config.json."""
    path = folder / "generation_config.json"
    found = None
    if path.is_file():
        try:
            found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    if found is None:
        found = getattr(config, "eos_token_id", None)
    if found is None:
        return frozenset()
    return frozenset([found] if isinstance(found, int) else found)


def context_length(config: Any) -> int:
    """Positions that the model knows."""
    for name in ("max_position_embeddings", "n_positions"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise ConfigError("config.json does not say the context length (max_position_embeddings)")


def _rope_types(config: Any) -> set[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    return {str(entry.get("rope_type", "default")) for entry in nested}
