"""Whether a head's checkpoint is made for a target. Says what differs before anything is drafted."""

from __future__ import annotations

import torch

from outrider.core.errors import ConfigError
from outrider.core.models import ModelInfo
from outrider.drafting.heads.weights import EagleWeights

_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def check_fit(
    weights: EagleWeights,
    target: ModelInfo,
    *,
    features: int,
    embedding: torch.Tensor,
    output: torch.Tensor,
    name: str,
) -> None:
    """Refuse a head that cannot draft for the target.

    Args:
        weights: of the head.
        target: what it would draft for.
        features: hidden states that it joins.
        embedding: token embeddings that it would use, its own or the target's.
        output: output head that it would use, likewise.
        name: of the head.

    Raises:
        ConfigError: names both, and what differs.
    """
    fault = (
        _sizes(weights, target)
        or _layers(weights, target, features)
        or _tensors(weights, target, embedding, output)
        or _draft_ids(weights.draft_ids, target, output)
    )
    if fault:
        raise ConfigError(f"head {name} does not fit target {target.model_name}: {fault}")


def _sizes(weights: EagleWeights, target: ModelInfo) -> str:
    config = weights.config
    if config.target_hidden_size != target.hidden_size:
        theirs = target.hidden_size
        return f"it takes hidden states of {config.target_hidden_size} elements, the target's have {theirs}"
    if config.vocab_size and config.vocab_size != target.vocab_size:
        return f"its vocabulary has {config.vocab_size} ids, the target's {target.vocab_size}"
    if str(config.rope_parameters.get("rope_type", "default")) in _LENGTH_DEPENDENT_ROPE:
        return "its rotary embedding is scaled by the length of the text, which is not supported"
    return ""


def _layers(weights: EagleWeights, target: ModelInfo, features: int) -> str:
    config = weights.config
    if not all(0 <= layer <= target.num_layers for layer in config.feature_layers):
        chosen = list(config.feature_layers)
        return f"it takes hidden states after layers {chosen}, the target has {target.num_layers}"
    if config.kind == "eagle3" and not config.feature_layers and target.num_layers < 3:
        return f"it takes three hidden states, the target has only {target.num_layers} layers"
    eagle3 = config.kind == "eagle3"
    joined = (
        features * config.target_hidden_size if eagle3 else config.hidden_size + config.target_hidden_size
    )
    if weights.fc.weight.shape != (config.hidden_size, joined):
        shape = tuple(weights.fc.weight.shape)
        return f"fc.weight has shape {shape}, {features} hidden states need {(config.hidden_size, joined)}"
    return ""


def _tensors(weights: EagleWeights, target: ModelInfo, embedding: torch.Tensor, output: torch.Tensor) -> str:
    hidden = weights.config.hidden_size
    needs = (("embedding", embedding, target.vocab_size), ("output head", output, 1))
    for what, tensor, rows in needs:
        if tensor.ndim != 2 or tensor.shape[1] != hidden or len(tensor) < rows:
            return f"the {what} has shape {tuple(tensor.shape)}, at least {rows} x {hidden} are needed"
    return ""


def _draft_ids(ids: torch.Tensor | None, target: ModelInfo, output: torch.Tensor) -> str:
    size = target.vocab_size
    if ids is None:
        return f"its output head has {len(output)} rows, there are {size} ids" if len(output) > size else ""
    if len(ids) != len(output) or len(set(ids.tolist())) != len(ids):
        return f"the {len(output)} rows of its output head need as many different draft ids"
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        return f"its draft ids go from {int(ids.min())} to {int(ids.max())}, there are {size} ids"
    return ""
