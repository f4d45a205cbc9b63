"""Random EAGLE and EAGLE-3 heads in the layout of github.com/SafeAILab/EAGLE, for the tiny targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

from outrider.drafting.heads.weights import EagleWeights, HeadConfig, LayerWeights, LinearWeights

Kind = Literal["eagle", "eagle3"]


def tiny_config(kind: Kind, *, hidden: int = 64, vocab_size: int = 512, columns: int = 0) -> dict[str, Any]:
    """A head's config.json. `columns`: size of its draft vocabulary; 0: of the target's."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3" if kind == "eagle3" else "LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": vocab_size,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    if kind == "eagle3":
        config["draft_vocab_size"] = columns or vocab_size
    else:
        config["bias"] = True
    return config


def tiny_state(config: dict[str, Any], *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights for `tiny_config`, float32, scaled up so that tokens differ."""
    generator = torch.Generator().manual_seed(seed)
    eagle3 = "draft_vocab_size" in config
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, (3 if eagle3 else 2) * hidden)}
    norms: list[str] = []
    for index, layer in enumerate(layer_names(config)):
        seen = 2 * hidden if eagle3 else hidden
        shapes |= {
            f"{layer}.self_attn.q_proj.weight": (hidden, seen),
            f"{layer}.self_attn.k_proj.weight": (kv, seen),
            f"{layer}.self_attn.v_proj.weight": (kv, seen),
            f"{layer}.self_attn.o_proj.weight": (hidden, hidden),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
        norms.append(f"{layer}.post_attention_layernorm.weight")
        if eagle3 or index:
            norms.append(f"{layer}.input_layernorm.weight")
    if eagle3:
        shapes["lm_head.weight"] = (config["draft_vocab_size"], hidden)
        norms += ["midlayer.hidden_norm.weight", "norm.weight"]
        if config.get("fc_norm"):
            norms += [f"fc_norm.{index}.weight" for index in range(3)]
    else:
        shapes["embed_tokens.weight"] = (config["vocab_size"], hidden)
        shapes["fc.bias"] = (hidden,)
    state = {name: torch.randn(shape, generator=generator) * 0.15 for name, shape in shapes.items()}
    state |= {name: 1 + 0.3 * torch.randn(hidden, generator=generator) for name in norms}
    if eagle3:
        columns = config["draft_vocab_size"]
        kept = torch.randperm(config["vocab_size"], generator=generator)[:columns].sort().values
        if config.get("norm_before_fc"):
            state["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * hidden, generator=generator)
        state["d2t"] = kept - torch.arange(columns)
        state["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill(0, kept, True)
    return state


def layer_names(config: dict[str, Any]) -> list[str]:
    """What the checkpoint calls its layers."""
    if "draft_vocab_size" in config:
        return ["midlayer"]
    return [f"layers.{index}" for index in range(config["num_hidden_layers"])]


def make_tiny_eagle(
    kind: Kind,
    folder: Path,
    *,
    hidden: int = 64,
    vocab_size: int = 512,
    columns: int = 0,
    seed: int = 0,
    **fields: Any,
) -> Path:
    """Write a head into `folder` (made if missing) and return it; `fields` go into its config.json."""
    config = tiny_config(kind, hidden=hidden, vocab_size=vocab_size, columns=columns) | fields
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tiny_state(config, seed=seed), folder / "model.safetensors")
    return folder


def tiny_weights(config: dict[str, Any], state: dict[str, torch.Tensor]) -> EagleWeights:
    """The same head as the drafter takes it, without a file."""
    eagle3 = "draft_vocab_size" in config
    columns = len(state["lm_head.weight"]) if eagle3 else 0

    def linear(name: str) -> LinearWeights:
        return LinearWeights(state[f"{name}.weight"], state.get(f"{name}.bias"))

    return EagleWeights(
        HeadConfig(
            kind="eagle3" if eagle3 else "eagle",
            hidden_size=config["hidden_size"],
            target_hidden_size=config["hidden_size"],
            vocab_size=config["vocab_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["hidden_size"] // config["num_attention_heads"],
            rms_norm_eps=config["rms_norm_eps"],
            norm_before_residual=config.get("norm_before_residual", False),
            norm_output=config.get("norm_output", False),
        ),
        fc=linear("fc"),
        layers=tuple(
            LayerWeights(
                query=linear(f"{layer}.self_attn.q_proj"),
                key=linear(f"{layer}.self_attn.k_proj"),
                value=linear(f"{layer}.self_attn.v_proj"),
                output=linear(f"{layer}.self_attn.o_proj"),
                mlp_norm=state[f"{layer}.post_attention_layernorm.weight"],
                gate=linear(f"{layer}.mlp.gate_proj"),
                up=linear(f"{layer}.mlp.up_proj"),
                down=linear(f"{layer}.mlp.down_proj"),
                input_norm=state.get(f"{layer}.input_layernorm.weight"),
                hidden_norm=state.get(f"{layer}.hidden_norm.weight"),
            )
            for layer in layer_names(config)
        ),
        embedding=state.get("embed_tokens.weight"),
        head=state.get("lm_head.weight"),
        norm=state.get("norm.weight"),
        fc_norm=state.get("input_norm.weight"),
        state_norms=tuple(state[name] for name in sorted(state) if name.startswith("fc_norm.")),
        draft_ids=state["d2t"] + torch.arange(columns) if eagle3 else None,
    )


def make_follower(folder: Path, target: Path) -> Path:
    """An EAGLE head that foretells what `make_unthinking` makes of a target."""
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    make_tiny_eagle("eagle", folder, hidden=embedding.shape[1], vocab_size=embedding.shape[0])
    state = load_file(folder / "model.safetensors")
    state["fc.weight"].zero_()[:, : embedding.shape[1]].fill_diagonal_(1.0)
    state["fc.bias"].zero_()
    state["layers.0.self_attn.o_proj.weight"].zero_()
    state["layers.0.mlp.down_proj.weight"].zero_()
    state["embed_tokens.weight"] = embedding
    save_file(state, folder / "model.safetensors")
    return folder


def make_unthinking(target: Path) -> Path:
    """Let a tiny llama's layers add nothing: its next token depends on the last one alone."""
    state = load_file(target / "model.safetensors")
    for name, tensor in state.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    return target
