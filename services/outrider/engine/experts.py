"""Mixtures of experts whose rows do not depend on what other tokens chose.

How many rows an expert gets depends on the whole batch. Here its products always have the same number of rows
(the last call is padded), and a token's experts are summed in the order of its own choice.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers.integrations.moe import ExpertsInterface

EXPERTS_NAME = "outrider_rows"

_ROWS = 16  # of every product of an expert


def _run_experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """An `ExpertsInterface` function: states [T, hidden], choices and weights [T, k], to [T, hidden]."""
    tokens, choices = top_k_index.shape
    results = hidden_states.new_zeros(tokens, choices, hidden_states.shape[-1])
    for expert in torch.unique(top_k_index).tolist():
        token, choice = torch.where(top_k_index == expert)
        rows = hidden_states.index_select(0, token)
        results[token, choice] = torch.cat([_run_expert(module, expert, p) for p in torch.split(rows, _ROWS)])
    output = torch.zeros_like(hidden_states)
    for place in range(choices):
        output = output + (results[:, place] * top_k_weights[:, place, None]).to(output.dtype)
    return output


def _run_expert(module: Any, expert: int, rows: torch.Tensor) -> torch.Tensor:
    count = rows.shape[0]
    padded = F.pad(rows, (0, 0, 0, _ROWS - count))
    name = "gate_up_proj" if module.has_gate else "up_proj"
    inner = _product(module, name, expert, padded)
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)  # noqa: SLF001 - its documented hook
    return _product(module, "down_proj", expert, inner)[:count]


def _product(module: Any, name: str, expert: int, rows: torch.Tensor) -> torch.Tensor:
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return F.linear(rows, weight.t() if module.is_transposed else weight, bias)


ExpertsInterface.register(EXPERTS_NAME, _run_experts)
