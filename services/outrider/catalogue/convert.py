"""Making model folders. Run as a program: torch, transformers and their chatter stay out of the caller.

    python -m outrider.catalogue.convert gguf FILE FOLDER
    python -m outrider.catalogue.convert draft LAYERS TARGET FOLDER

Weights are stored in bf16, the format SmolLM2 was published in. Against float32 storage of the
dequantised values that rounds 82 % of them, by 0.14 % of a matrix's norm at most, where the Q4_1
quantisation before it cost several per cent; both serving formats then hold the very same
weights, and the folder is half as big. The folder is the target model by definition: references
for float32 serving load it too.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
EMBEDDINGS = "model.embed_tokens.weight"
DRAFT_VOCABULARY = "draft_vocabulary.safetensors"


def from_gguf(file: Path, folder: Path) -> None:
    """Write `file` as a Hugging Face folder: config, bf16 safetensors, tokenizer, chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)  # nosec B615
    tokenizer.save_pretrained(str(folder))
    model = AutoModelForCausalLM.from_pretrained(  # a local file  # nosec B615
        str(file.parent),
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(str(folder))


def compose_draft(layers: Path, target: Path, folder: Path) -> None:
    """Write the draft model whose own part lies in `layers` with the embeddings and tokenizer of `target`."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    tensors = load_file(layers / "layers.safetensors")
    with safe_open(target / "model.safetensors", framework="pt") as file:
        tensors[EMBEDDINGS] = file.get_tensor(EMBEDDINGS)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", DRAFT_VOCABULARY):
        shutil.copyfile(layers / name, folder / name)
    for name in TOKENIZER_FILES:
        if (target / name).exists():
            shutil.copyfile(target / name, folder / name)


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    kind, *paths = arguments
    if kind == "gguf":
        file, folder = map(Path, paths)
        from_gguf(file, folder)
    else:
        layers, target, folder = map(Path, paths)
        compose_draft(layers, target, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
