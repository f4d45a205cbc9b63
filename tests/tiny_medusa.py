"""Random Medusa heads in the layouts that are published, and what they say, by plain modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

State = dict[str, torch.Tensor]


class _Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        self.act = nn.SiLU()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = rows + self.act(self.linear(rows))
        return moved


class ReferenceHeads(nn.ModuleList):
    """The heads of arXiv 2401.10774, whose state dict is what FasterDecoding publishes."""

    def __init__(self, heads: int = 3, layers: int = 1, *, hidden: int = 64, columns: int = 512) -> None:
        super().__init__(
            nn.Sequential(*(_Block(hidden) for _ in range(layers)), nn.Linear(hidden, columns, bias=False))
            for _ in range(heads)
        )

    @classmethod
    def random(cls, heads: int = 3, layers: int = 1, *, seed: int = 0, **sizes: int) -> ReferenceHeads:
        """Scaled so that tokens differ."""
        made = cls(heads, layers, **sizes)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        return made

    @torch.no_grad()
    def say(self, state: torch.Tensor) -> torch.Tensor:
        """Logits [heads, columns] after a hidden state [hidden]."""
        return torch.stack([head(state) for head in self])


def medusa_config(heads: int = 3, layers: int = 1, **fields: Any) -> dict[str, Any]:
    """config.json as FasterDecoding's `MedusaConfig.save_pretrained` writes it."""
    return {
        "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
        "medusa_num_heads": heads,
        "medusa_num_layers": layers,
        "transformers_version": "4.34.1",
    } | fields


def write_medusa(folder: Path, config: dict[str, Any], state: State, *, pickled: bool = False) -> Path:
    """Write heads into `folder` (made if missing) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if pickled:
        torch.save(state, folder / "medusa_lm_head.pt")
    else:
        save_file(
            {name: own.contiguous() for name, own in state.items()}, folder / "medusa_lm_head.safetensors"
        )
    return folder


def make_tiny_medusa(folder: Path, *, heads: int = 3, layers: int = 1, seed: int = 0, **sizes: int) -> Path:
    """Random heads in FasterDecoding's layout."""
    state = ReferenceHeads.random(heads, layers, seed=seed, **sizes).state_dict()
    return write_medusa(folder, medusa_config(heads, layers), state)


def make_foretelling(folder: Path, target: Path, heads: int = 3) -> Path:
    """Heads that foretell what `make_unthinking` makes of a target, once that goes round in a circle."""
    weights = load_file(target / "model.safetensors")
    embedding, output = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    states = nn.functional.rms_norm(embedding, embedding.shape[1:], weights["model.norm.weight"], 1e-5)
    after = (states @ output.T).argmax(1)
    circles = torch.arange(len(after))
    for _ in range(len(after)):
        circles = after[circles].unique()
    reference = ReferenceHeads(heads, hidden=output.shape[1], columns=len(output))
    state = {name: torch.zeros_like(own) for name, own in reference.state_dict().items()}
    later = circles
    for head in range(heads):
        later = after[later]
        state[f"{head}.1.weight"][later] = output[circles]
    return write_medusa(folder, medusa_config(heads), state)
