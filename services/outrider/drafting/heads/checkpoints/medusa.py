"""Medusa checkpoints as they are published.

- FasterDecoding: `medusa_num_heads` and `medusa_num_layers` in config.json; head i has blocks `i.j.linear`
  and an output head `i.n.weight`, in medusa_lm_head.pt or .safetensors. Where the heads are part of a model
  that holds the target too, `medusa_head.` comes before, and the target's tensors are not read.
- vLLM: `num_heads` and `num_hidden_layers`; `blocks.i.layers.j`, `lm_heads.i.weight` (or one `lm_head.weight`
  for all), and `token_map`, the ids of a reduced draft vocabulary.

Without output heads the target's own is meant, over the ids of draft_vocabulary.safetensors if there is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.core.errors import ConfigError, UnsupportedModelError
from outrider.drafting.heads.checkpoints.configs import read_config, whole_number
from outrider.drafting.heads.checkpoints.layers import take_linear
from outrider.drafting.heads.checkpoints.tensors import CheckpointTensors
from outrider.drafting.heads.medusa_weights import MedusaWeights
from outrider.drafting.picking.vocabulary import load_vocabulary

MOST_HEADS = 64
"""No tree is deeper."""
_PREFIX = re.compile(r"^(medusa_heads?|module)\.")
_OF_TARGET = ("model.", "transformer.", "gpt_neox.")
_OUTPUT = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a layout calls things."""

    heads: str  # fields of config.json
    layers: str
    block: str  # linear layer of a block, by head and number
    output: str  # output head, by head and number of blocks
    first: str  # what the names of a head's tensors begin with


_MEDUSA = _Layout(
    "medusa_num_heads", "medusa_num_layers", "{head}.{block}.linear", "{head}.{block}.weight", ""
)
_VLLM = _Layout(
    "num_heads", "num_hidden_layers", "blocks.{head}.layers.{block}", "lm_heads.{head}.weight", "blocks."
)


def load_medusa(folder: Path) -> MedusaWeights:
    """The heads in `folder`, of whichever layout they are.

    Raises:
        ConfigError: config.json or a tensor is missing, unreadable, misshapen or not understood.
        UnsupportedModelError: it is another kind of head.
    """
    config = read_config(folder)
    if config.get("speculators_model_type") is not None:
        kind = config["speculators_model_type"]
        raise UnsupportedModelError(f"{folder.name} is a head of type {str(kind)[:40]!r}, not medusa")
    tensors = CheckpointTensors(folder, rename=_short_name)
    layout = _VLLM if any(name.startswith(_VLLM.first) for name in tensors.names) else _MEDUSA
    weights = _load(folder, config, tensors, layout)
    beyond = [name for name in tensors.names if _head_of(name, layout) >= len(weights.blocks)]
    tensors.check_all_taken(("token_map", *_target_head(tensors, layout), *beyond))
    return weights


def _short_name(name: str) -> str | None:
    """A tensor's name less what stands before the heads; None: it is the target's."""
    if name.startswith(_OF_TARGET):
        return None
    return _PREFIX.sub("", name)


def _load(folder: Path, config: dict[str, Any], tensors: CheckpointTensors, layout: _Layout) -> MedusaWeights:
    heads = whole_number(config, layout.heads, 0) or _count(tensors, layout)
    layers = whole_number(config, layout.layers, 1)
    if not 1 <= heads <= MOST_HEADS or layers > MOST_HEADS:
        raise ConfigError(
            f"{folder / 'config.json'}: {layout.heads} is {heads} and {layout.layers} {layers}, "
            f"expected 1 to {MOST_HEADS} and 0 to {MOST_HEADS}"
        )
    first = (f"{layout.block}.weight" if layers else layout.output).format(head=0, block=0)
    hidden = whole_number(config, "hidden_size", 0) or tensors.take(first, -1, -1).shape[1]
    blocks = tuple(
        tuple(
            take_linear(tensors, layout.block.format(head=head, block=block), hidden, hidden)
            for block in range(layers)
        )
        for head in range(heads)
    )
    vocab_size = whole_number(config, "vocab_size", 0)
    outputs = _outputs(tensors, layout, heads, layers, hidden)
    ids, outputs = _reduced(folder, tensors, outputs)
    base = config.get("base_model_name_or_path")
    return MedusaWeights(hidden, vocab_size, blocks, outputs, ids, base if isinstance(base, str) else "")


def _outputs(
    tensors: CheckpointTensors, layout: _Layout, heads: int, layers: int, hidden: int
) -> tuple[torch.Tensor, ...]:
    """[columns, hidden] of each head, or of all of them, or none; as many columns in each."""
    names = [layout.output.format(head=head, block=layers) for head in range(heads)]
    if not any(name in tensors for name in names):
        shared = tensors.find(_OUTPUT, -1, hidden) if layout is _VLLM else None
        return () if shared is None else (shared,)
    if names[0] in tensors and not any(name in tensors for name in names[1:]) and layout is _VLLM:
        return (tensors.take(names[0], -1, hidden),)  # `original_lm_head`: it serves all
    columns = len(tensors.take(names[0], -1, hidden))
    return tuple(tensors.take(name, columns, hidden) for name in names)


def _reduced(
    folder: Path, tensors: CheckpointTensors, outputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor | None, tuple[torch.Tensor, ...]]:
    """Ids of the draft vocabulary, ascending, and the rows of the output heads for them."""
    listed = tensors.find("token_map", -1)
    if listed is None:
        ids, order = load_vocabulary(folder), None
    else:
        if listed.is_floating_point() or listed.dtype == torch.bool or not len(listed):
            raise tensors.fault(
                f"token_map has type {listed.dtype} and {len(listed)} ids, expected whole numbers"
            )
        ids, order = listed.long().sort()
        if int(ids[0]) < 0 or len(set(ids.tolist())) != len(ids):
            raise tensors.fault("token_map must hold different ids, none below 0")
    if ids is None or not outputs:
        return ids, outputs
    columns = len(outputs[0])
    if columns == len(ids):
        return ids, outputs if order is None else tuple(own[order] for own in outputs)
    if int(ids[-1]) >= columns:
        raise tensors.fault(
            f"the output heads have {columns} rows, which are neither those of the {len(ids)} draft ids "
            f"nor of all ids up to {int(ids[-1])}"
        )
    return ids, tuple(own[ids] for own in outputs)


def _count(tensors: CheckpointTensors, layout: _Layout) -> int:
    """Heads that there are tensors of."""
    return 1 + max((_head_of(name, layout) for name in tensors.names), default=-1)


def _head_of(name: str, layout: _Layout) -> int:
    """The head that a tensor belongs to; -1: none."""
    start = name.removeprefix("lm_heads.").removeprefix(layout.first).split(".")[0]
    return int(start) if start.isascii() and start.isdigit() and len(start) < 4 else -1


def _target_head(tensors: CheckpointTensors, layout: _Layout) -> tuple[str, ...]:
    """The target's own output head, where heads are part of a model that holds the target too."""
    return (_OUTPUT,) if layout is _MEDUSA and tensors.left_out else ()
