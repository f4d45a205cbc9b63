"""Random tiny checkpoints of many architectures, as local Hugging Face folders.

Weights are random but scaled up, so that logits differ enough between tokens for greedy and
sampled outputs to vary. The tokenizer is a real byte-level BPE: any text can be encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
EOS_TOKEN_ID = 2
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + ' <tool_call></tool_call><|im_end|>\n' }}"
    "{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = """The quick brown fox jumps over the lazy dog. A drafter rides ahead and proposes tokens, and the
verifier checks them in one forward pass. It is the only source of truth. Write a function that adds two
numbers: def add(first, second): return first + second. The user asks a question, the assistant answers it.
What is the capital of France? Paris is the capital and the largest city of France. In the beginning there was
nothing, and then there was light; the people of the town said that they had never seen anything like that."""


@cache
def _tokenizer_json(vocab_size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    text: str = tokenizer.to_str()
    return text


def _common(vocab_size: int, layers: int, max_position: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": max_position,
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }


def _with(*drop: str, **extra: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda common: {key: value for key, value in common.items() if key not in drop} | extra


def _gpt2(common: dict[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": common["vocab_size"],
        "n_embd": 64,
        "n_layer": common["num_hidden_layers"],
        "n_head": 4,
        "n_positions": common["max_position_embeddings"],
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
    }


def _opt(common: dict[str, Any]) -> dict[str, Any]:
    kept = _with("head_dim", "num_key_value_heads", "intermediate_size")(common)
    return kept | {"ffn_dim": 128, "word_embed_proj_dim": 64}


_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
_MLA = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
_ALTERNATING = ["sliding_attention", "full_attention"]

_KINDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "llama": _with(),
    "mistral": _with(sliding_window=24),
    "qwen2": _with("head_dim"),
    "qwen3": _with(),
    "gpt2": _gpt2,
    "gemma2": _with(sliding_window=24, query_pre_attn_scalar=16),
    "gemma3_text": _with(sliding_window=24, query_pre_attn_scalar=16),
    "phi3": _with("head_dim"),
    "gpt_neox": _with("head_dim", "num_key_value_heads"),
    "opt": _opt,
    "stablelm": _with("head_dim"),
    "olmo2": _with("head_dim"),
    "gpt_oss": _with(sliding_window=24, num_local_experts=4, num_experts_per_tok=2),
    "granite": _with("head_dim", attention_multiplier=0.25, residual_multiplier=0.5, logits_scaling=2.0),
    "smollm3": _with("head_dim"),
    "cohere2": _with("head_dim", sliding_window=24),
    "starcoder2": _with("head_dim", sliding_window=None),
    "mixtral": _with("head_dim", num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": _with(**_MOE),
    "deepseek_v3": _with("head_dim", **_MLA),
    "phi": _with("head_dim"),
    "glm4": _with(),
    "nemotron": _with("head_dim"),
}
TINY_KINDS = tuple(_KINDS)
_LAYER_TYPED = {"gemma2", "gemma3_text", "gpt_oss", "cohere2"}


def make_tiny(
    kind: str,
    folder: Path,
    *,
    vocab_size: int = 512,
    seed: int = 0,
    layers: int = 2,
    max_position: int = 2048,
) -> Path:
    """Write a random tiny checkpoint with tokenizer into `folder` (made if missing) and return it.

    The same arguments give the same bytes. `vocab_size` may exceed the tokenizer's (a padded
    vocabulary); at least 260 are needed for the byte alphabet and the special tokens.
    """
    fields = _KINDS[kind](_common(vocab_size, layers, max_position))
    if kind in _LAYER_TYPED:
        fields["layer_types"] = [_ALTERNATING[index % 2] for index in range(layers)]
    config = transformers.AutoConfig.for_model(kind, **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0.0, 0.15)
                elif name.endswith("bias") or "sinks" in name:
                    parameter.normal_(0.0, 0.1)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_tokenizer_json(min(vocab_size, 512))),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=max_position,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder
