"""What makes two tokenizers the same: which id stands for which piece of text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outrider.core.errors import ConfigError


def tokenizer_fingerprint(folder: Path) -> str:
    """SHA-256 (hex) over vocabulary, merges and added tokens of `folder`/tokenizer.json.

    Two folders have the same fingerprint exactly if ids mean the same text in both. Formatting,
    key order, the two ways to write merges ("a b" and ["a", "b"]), and settings that do not change what an
    id means (truncation, padding, post-processing templates) do not count.

    Raises:
        ConfigError: there is no tokenizer.json, or it is not a tokenizer.
    """
    path = folder / "tokenizer.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: a model folder needs its tokenizer.json") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        canonical = json.dumps(_canonical(content), ensure_ascii=True, separators=(",", ":"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"{path} is not a tokenizer of the tokenizers library: {error!r}") from error
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _canonical(content: dict[str, Any]) -> list[Any]:
    """What counts, in an order that the file's layout does not influence."""
    model = content["model"]
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or ())
    added = content.get("added_tokens") or ()
    return [
        model.get("type", "BPE"),
        sorted((token_id, token) for token, token_id in _vocabulary(model["vocab"])),
        [[left, right] for left, right in merges],
        sorted((int(entry["id"]), str(entry["content"])) for entry in added),
    ]


def _vocabulary(vocab: dict[str, int] | list[list[Any]]) -> Iterator[tuple[str, int]]:
    """BPE, WordPiece and WordLevel map tokens to ids; Unigram lists [token, score] in id order."""
    if isinstance(vocab, dict):
        yield from ((token, int(token_id)) for token, token_id in vocab.items())
    else:
        yield from ((str(entry[0]), token_id) for token_id, entry in enumerate(vocab))
