"""What training takes from the target's folder. The target is not run: its hidden states are in the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from outrider.core.errors import ConfigError
from outrider.drafting.heads.target import TargetModel, describe_target
from outrider.engine.loading import load_config


@dataclass(frozen=True, slots=True)
class Teacher:
    """A target's sizes, embeddings and output head over a draft vocabulary."""

    target: TargetModel
    config: Any  # transformers config
    draft_ids: torch.Tensor  # int64 [columns], ascending
    embedding: torch.Tensor  # [vocab_size, hidden_size]
    head: torch.Tensor  # [columns, hidden_size]

    @classmethod
    def load(
        cls,
        folder: Path,
        name: str,
        draft_ids: torch.Tensor,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> Teacher:
        """Read what is needed of a folder.

        Raises:
            ConfigError: something is missing, or an id of the draft vocabulary is none of the target's.
            UnsupportedModelError: its architecture is not supported.
        """
        target = describe_target(folder, name)
        if len(draft_ids) == 0 or int(draft_ids.min()) < 0 or int(draft_ids.max()) >= target.info.vocab_size:
            raise ConfigError(f"the draft vocabulary must hold ids from 0 to {target.info.vocab_size - 1}")
        ids: torch.Tensor = torch.unique(draft_ids)
        embedding = target.embedding().to(device, dtype)
        head = target.output_head().to(device, dtype)[ids.to(device)]
        return cls(target, load_config(folder), ids.to(device), embedding, head)

    @property
    def hidden_size(self) -> int:
        """Elements of a hidden state."""
        return self.target.info.hidden_size

    @property
    def rope_parameters(self) -> dict[str, Any]:
        """Of the target's rotary embedding; the plain one if it has none."""
        given = getattr(self.config, "rope_parameters", None) or {}
        if "rope_theta" not in given:
            return {"rope_type": "default", "rope_theta": 10000.0}
        return dict(given)

    @property
    def norm_eps(self) -> float:
        """Of RMS norms."""
        return float(getattr(self.config, "rms_norm_eps", None) or 1e-5)

    def columns_of(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64, the draft vocabulary's column of each id; -1 where it has none."""
        table = torch.full((self.target.info.vocab_size,), -1, device=token_ids.device)
        table[self.draft_ids.to(token_ids.device)] = torch.arange(
            len(self.draft_ids), device=token_ids.device
        )
        return table[token_ids]

    def log_probs(self, last_hidden: torch.Tensor) -> torch.Tensor:
        """The target's law after each hidden state [n, hidden_size]: float32 log softmax over the columns."""
        logits = F.linear(last_hidden.to(self.head.dtype), self.head).float()
        return self._scaled(logits).log_softmax(-1)

    def last_layer(self) -> Mapping[str, torch.Tensor]:
        """Weights of the last decoder layer by their names within it; empty if they have other names."""
        prefix = f"model.layers.{self.target.info.num_layers - 1}."
        tensors: dict[str, torch.Tensor] = {}
        for path in sorted(self.target.folder.glob("*.safetensors")):
            every = load_file(path)
            tensors |= {name.removeprefix(prefix): every[name] for name in every if name.startswith(prefix)}
        return tensors

    def final_norm(self) -> torch.Tensor | None:
        """Weight of the target's last norm, if it has the usual name."""
        for path in sorted(self.target.folder.glob("*.safetensors")):
            found: torch.Tensor | None = load_file(path).get("model.norm.weight")
            if found is not None:
                return found
        return None

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits * float(getattr(self.config, "logit_scale", None) or 1.0)
        logits = logits / float(getattr(self.config, "logits_scaling", None) or 1.0)
        cap = getattr(self.config, "final_logit_softcapping", None)
        return torch.tanh(logits / cap) * cap if cap else logits
