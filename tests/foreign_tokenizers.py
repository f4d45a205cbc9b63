"""Tokenizers that cut the same text in different ways, and twins of a model under other ids."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.tiny_models import make_tiny

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CORPUS = (
    "The quick brown fox jumps over the lazy dog. The drafter rides ahead and proposes tokens; the verifier "
    "checks them in one forward pass. Zwölf Boxkämpfer jagen Viktor quer über den großen Deich. 1 + 1 = 2"
)
_CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))


def content(tokenizer: Tokenizer) -> dict[str, Any]:
    """As in a tokenizer.json."""
    loaded: dict[str, Any] = json.loads(tokenizer.to_str())
    return loaded


def byte_level(vocab_size: int) -> Tokenizer:
    """GPT-2's kind of BPE: any bytes, merges within words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """SentencePiece's kind: spaces are part of words, one is put before a text; others may be unknown."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([CORPUS] * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def llama_like() -> Tokenizer:
    """Llama 2's kind: BPE over whole texts, bytes as `<0x0A>` where there is no token."""
    letters = [*sorted(set(CORPUS) - {" ", "ö"}), "▁"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("e", "r"), ("i", "n"), ("o", "x")]
    names += ["".join(pair) for pair in merges]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def characters(order: int) -> Tokenizer:
    """ASCII, a token a character, numbered in an order of its own: every text is cut in one way only."""
    names = [*_CHARACTERS]
    random.Random(order).shuffle(names)
    names = [*SPECIAL, *(name.translate({32: "Ġ", 10: "Ċ"}) for name in names)]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def make_character_twins(folder: Path) -> tuple[Path, Path]:
    """The same model of characters twice, under different ids: what one picks, so does the other."""
    first, second = characters(1), characters(2)
    size = first.get_vocab_size()
    target = make_tiny("llama", folder / "target", vocab_size=512)
    weights = load_file(target / "model.safetensors")
    draft = folder / "draft"
    shutil.copytree(target, draft)
    theirs = first.get_vocab()
    source = [theirs[second.id_to_token(index)] for index in range(size)]
    for place, order, tokenizer in ((target, list(range(size)), first), (draft, source, second)):
        own = dict(weights)
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            own[name] = weights[name][order].contiguous()
        save_file(own, place / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
        tokenizer.save(str(place / "tokenizer.json"))
    return target, draft
