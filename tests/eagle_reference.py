"""EAGLE and EAGLE-3 as published, in plain torch: whole sequences, no cache, one at a time.

Written from the papers (arXiv 2401.15077, 2503.01840) and from what cnets1.py and cnets.py of
github.com/SafeAILab/EAGLE compute; takes their checkpoints' tensors by name. Shares no code with the drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F


class ReferenceHead:
    """A head over a checkpoint's tensors.

    Args:
        config: of the checkpoint.
        state: its tensors, float32.
        embedding: [vocabulary, hidden] of the target, if the checkpoint has none.
        output: [vocabulary, hidden] of the target, if the checkpoint has none.
    """

    def __init__(
        self,
        config: dict[str, Any],
        state: dict[str, torch.Tensor],
        embedding: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        self._config = config
        self._state = state
        self._eagle3 = "midlayer.self_attn.q_proj.weight" in state
        self._embedding = state.get("embed_tokens.weight", embedding)
        self._output = state.get("lm_head.weight", output)

    def after(
        self, features: torch.Tensor, token_ids: Sequence[int], drafted: Sequence[int] = (), first: int = 0
    ) -> torch.Tensor:
        """Logits of what follows `drafted` over the columns of the head, float32.

        Args:
            features: [n, width] of the positions `first` to `first` + n - 1.
            token_ids: n tokens, those of the positions `first` + 1 on.
            drafted: tokens after these.
        """
        states = self._fused(features)
        tokens = list(token_ids)
        out = self._run(states, tokens, first)
        for token_id in drafted:
            states = torch.cat((states, out[-1:]))
            tokens.append(token_id)
            out = self._run(states, tokens, first)
        normed = self._eagle3 and not self._config.get("norm_output")
        last = self._norm(out[-1:], "norm.weight") if normed else out[-1:]
        return F.linear(last, self._output)[0]

    def target_ids(self) -> torch.Tensor:
        """Vocabulary ids of the head's columns."""
        columns = torch.arange(len(self._output))
        return columns + self._state["d2t"] if "d2t" in self._state else columns

    def _fused(self, features: torch.Tensor) -> torch.Tensor:
        if not self._eagle3:
            return features
        if self._config.get("fc_norm"):  # of the speculators format
            parts = features.chunk(3, -1)
            features = torch.cat(
                [self._norm(part, f"fc_norm.{i}.weight") for i, part in enumerate(parts)], -1
            )
        if self._config.get("norm_before_fc"):
            features = self._norm(features, "input_norm.weight")
        return F.linear(features, self._state["fc.weight"])

    def _run(self, states: torch.Tensor, token_ids: Sequence[int], first: int) -> torch.Tensor:
        """Of each row the state after it."""
        embedded = self._embedding[torch.tensor(token_ids)]
        if not self._eagle3:
            joined = torch.cat((embedded, states), -1)
            rows = F.linear(joined, self._state["fc.weight"], self._state.get("fc.bias"))
            for index in range(self._config["num_hidden_layers"]):
                layer = f"layers.{index}"
                seen = self._norm(rows, f"{layer}.input_layernorm.weight") if index else rows
                rows = self._decoded(layer, rows, seen, first)
            return rows
        seen = torch.cat(
            (
                self._norm(embedded, "midlayer.input_layernorm.weight"),
                self._norm(states, "midlayer.hidden_norm.weight"),
            ),
            -1,
        )
        if self._config.get("norm_before_residual"):  # of the speculators format
            states = seen[:, states.shape[1] :]
        out = self._decoded("midlayer", states, seen, first)
        return self._norm(out, "norm.weight") if self._config.get("norm_output") else out

    def _decoded(self, layer: str, residual: torch.Tensor, seen: torch.Tensor, first: int) -> torch.Tensor:
        hidden = residual + self._attention(layer, seen, first)
        normed = self._norm(hidden, f"{layer}.post_attention_layernorm.weight")
        gate = self._linear(f"{layer}.mlp.gate_proj", normed)
        up = self._linear(f"{layer}.mlp.up_proj", normed)
        return hidden + self._linear(f"{layer}.mlp.down_proj", F.silu(gate) * up)

    def _attention(self, layer: str, seen: torch.Tensor, first: int) -> torch.Tensor:
        heads, kv_heads = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        count = len(seen)
        query = self._linear(f"{layer}.self_attn.q_proj", seen).view(count, heads, -1).transpose(0, 1)
        key = self._linear(f"{layer}.self_attn.k_proj", seen).view(count, kv_heads, -1).transpose(0, 1)
        value = self._linear(f"{layer}.self_attn.v_proj", seen).view(count, kv_heads, -1).transpose(0, 1)
        positions = torch.arange(first, first + count)
        query, key = self._rotated(query, positions), self._rotated(key, positions)
        key, value = (rows.repeat_interleave(heads // kv_heads, 0) for rows in (key, value))
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), float("-inf"))
        attended = scores.softmax(-1) @ value
        return self._linear(f"{layer}.self_attn.o_proj", attended.transpose(0, 1).reshape(count, -1))

    def _rotated(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = rows.shape[-1] // 2
        frequencies = self._config["rope_theta"] ** (-torch.arange(half).float() / half)
        angles = positions[:, None].float() * frequencies
        cosines, sines = (torch.cat((part, part), -1) for part in (angles.cos(), angles.sin()))
        turned = torch.cat((-rows[..., half:], rows[..., :half]), -1)
        return rows * cosines + turned * sines

    def _linear(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self._state[f"{name}.weight"])

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self._config["rms_norm_eps"])
        return rows * scale * self._state[name]
