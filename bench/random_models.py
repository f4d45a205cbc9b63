"""Llama models with random weights, of the shapes that bench/target_size.py compares."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from outrider.catalogue import resolve

TOKENIZER_OF = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int


TARGETS = {
    "tiny": Shape(128, 4, 4, 2, 256),
    "135m": Shape(576, 30, 9, 3, 1536),
    "360m": Shape(960, 32, 15, 5, 2560),
    "1b": Shape(2048, 16, 32, 8, 8192),
}


def drafters_for(target: Shape) -> dict[str, Shape]:
    """What would draft for it: a layer of its own, as EAGLE has it, and a model a tenth of its size."""
    size = 64 * max(1, round(target.hidden / 3 / 64))
    heads = max(1, size // 64)
    return {
        "one_layer": Shape(target.hidden, 1, target.heads, target.kv_heads, target.intermediate),
        "small_model": Shape(size, max(1, target.layers // 2), heads, heads, 4 * size),
    }


def make(folder: Path, shape: Shape, *, seed: int = 0) -> Path:
    """A model in bf16 with the tokenizer of the demo's target, unless `folder` has one already."""
    if (folder / "model.safetensors").is_file():
        return folder
    source = resolve(TOKENIZER_OF)
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, safe_serialization=True, max_shard_size="100GB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    return folder
