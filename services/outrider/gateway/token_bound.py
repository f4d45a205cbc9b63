"""How much text a token can stand for at most: what is longer can be refused without tokenising it."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

_NFC_SHRINKS = 4
"""Canonical composition makes one character of at most this many (Unicode Standard Annex 15)."""


def most_characters_per_token(tokenizer: Tokenizer) -> int:
    """No token stands for more characters of a text than this. 0: no such bound is known.

    Known for BPE that loses nothing: over all bytes, or with byte fallback; with steps before it that drop
    nothing. Elsewhere one token may stand for any length: unknown characters fused into one, spaces
    dropped, or taken in by an added token that strips.
    """
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    model = parts["model"]
    vocab = model.get("vocab")
    if model.get("type") != "BPE" or not isinstance(vocab, dict) or not _knows_all(model, parts):
        return 0
    added: list[dict[str, Any]] = parts["added_tokens"]
    if any(token["lstrip"] or token["rstrip"] for token in added):
        return 0
    shrinks = _shrinks(parts["normalizer"])
    if not shrinks or not _splits_only(parts["pre_tokenizer"]):
        return 0
    # A byte-level token has one letter for each byte, so at least one for each character.
    longest = max(map(len, [*vocab, *(token["content"] for token in added)]), default=0)
    return int(shrinks * longest)


def _knows_all(model: dict[str, Any], parts: dict[str, Any]) -> bool:
    """Whether every text can be told in tokens, so that nothing is dropped or fused."""
    if model.get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))
    return "ByteLevel" in _types(parts["pre_tokenizer"]) and all(
        letter in model["vocab"] for letter in ByteLevel.alphabet()
    )


def _steps(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A normaliser or pre-tokeniser as the list of its steps."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        inner = step.get("normalizers") or step.get("pretokenizers") or []
        return [one for part in inner for one in _steps(part)]
    return [step]


def _types(step: dict[str, Any] | None) -> set[str]:
    return {one["type"] for one in _steps(step)}


def _shrinks(normalizer: dict[str, Any] | None) -> int:
    """Times that a text may get shorter; 0: not known."""
    factor = 1
    for step in _steps(normalizer):
        if step["type"] == "NFC":
            factor *= _NFC_SHRINKS
        elif step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if not pattern or len(step["content"]) < len(pattern):
                return 0
        elif step["type"] not in ("Prepend", "NFD", "Lowercase"):
            return 0
    return factor


def _splits_only(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether it drops nothing."""
    return all(
        step["type"] in ("ByteLevel", "Metaspace", "Digits")
        or (step["type"] == "Split" and step["behavior"] != "Removed")
        for step in _steps(pre_tokenizer)
    )
