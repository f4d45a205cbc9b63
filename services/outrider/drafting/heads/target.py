"""What a head takes from its target's folder: sizes, embeddings, output head. The target is not loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from outrider.core.errors import ConfigError
from outrider.core.fingerprint import tokenizer_fingerprint
from outrider.core.models import ModelInfo
from outrider.engine.loading import context_length, eos_token_ids, load_config

_EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "transformer.wte.weight",
    "gpt_neox.embed_in.weight",
)
_HEADS = ("lm_head.weight", "embed_out.weight")


@dataclass(frozen=True, slots=True)
class TargetModel:
    """A target as its heads see it."""

    folder: Path
    info: ModelInfo  # its dtype is empty: the folder does not say how the target is run
    eos_token_ids: frozenset[int]

    def embedding(self) -> torch.Tensor:
        """[vocab_size, hidden_size].

        Raises:
            ConfigError: there is none under any known name.
        """
        return self._tensor(_EMBEDDINGS, "token embeddings")

    def output_head(self) -> torch.Tensor:
        """[vocab_size, hidden_size]; the embeddings, if these are tied.

        Raises:
            ConfigError: there is none under any known name.
        """
        names = _HEADS if self._names() & set(_HEADS) else _EMBEDDINGS
        return self._tensor(names, "output head")

    def _names(self) -> set[str]:
        return set(_where(self.folder))

    def _tensor(self, names: tuple[str, ...], what: str) -> torch.Tensor:
        files = _where(self.folder)
        for name in names:
            if name in files:
                with safe_open(files[name], framework="pt") as file:
                    tensor: torch.Tensor = file.get_tensor(name)
                    return tensor
        raise ConfigError(f"{self.folder.name} holds no {what} under any of the names {', '.join(names)}")


def describe_target(folder: Path, name: str = "") -> TargetModel:
    """The target in `folder`.

    Raises:
        ConfigError: no readable config.json or tokenizer.json.
        UnsupportedModelError: its architecture is not supported.
    """
    config = load_config(folder)
    info = ModelInfo(
        model_name=name or folder.name,
        tokenizer_fingerprint=tokenizer_fingerprint(folder),
        vocab_size=config.vocab_size,
        context_length=context_length(config),
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
    )
    return TargetModel(folder, info, eos_token_ids(folder, config))


def _where(folder: Path) -> dict[str, Path]:
    """The file of each tensor."""
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            weights = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {name: folder / str(file) for name, file in weights.items()}
        files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                files |= dict.fromkeys(file.keys(), path)
        return files
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise ConfigError(f"the weights of {folder} cannot be read: {error}") from error
