"""What the ids of a tokenizer stand for, and text to ids without anything added to it."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from outrider.core.errors import ConfigError

_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}


class TokenTexts:
    """A tokenizer as a translator between vocabularies sees it."""

    def __init__(self, content: dict[str, Any], size: int = 0) -> None:
        """Args:
        content: of a tokenizer.json.
        size: rows of the model's embeddings; 0: not known. Tokens that were added past them are left out:
            to run one is not possible, whoever writes it in a prompt.
        """
        lead = _lead(Tokenizer.from_str(json.dumps(content)))
        self.lead = tuple(token_id for token_id in lead if token_id < size or not size)
        """Ids that the tokenizer puts before any text, such as a beginning-of-sequence token."""
        if size:
            added = [token for token in content.get("added_tokens") or () if token["id"] < size]
            content = content | {"added_tokens": added}
        # Post-processors add tokens, and some of them trim the offsets that seams are found by.
        bare = content | {"post_processor": None, "truncation": None, "padding": None}
        self._tokenizer = Tokenizer.from_str(json.dumps(bare))
        self._tokenizer.encode_special_tokens = True  # special tokens are translated apart from text
        self.special = {
            token_id: token.content
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._special_ids = {text: token_id for token_id, text in self.special.items()}
        self._byte_level = _has_decoder(content.get("decoder"), "ByteLevel")
        fallback = _has_decoder(content.get("decoder"), "ByteFallback")
        self._byte_tokens = _byte_tokens(self._tokenizer) if fallback else {}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, folder: Path, size: int = 0) -> TokenTexts:
        """Read `folder`/tokenizer.json; `size` as above.

        Raises:
            ConfigError: it cannot be read as a tokenizer.
        """
        path = folder / "tokenizer.json"
        try:
            return cls(json.loads(path.read_text(encoding="utf-8")), size)
        except Exception as error:  # tokenizers raises nothing narrower
            raise ConfigError(f"{path} cannot be read as a tokenizer: {error}") from error

    @cached_property
    def strips_first_space(self) -> bool:
        """Whether a space before the first word is the tokenizer's own, and not the text's."""
        ids, _ = self.encode("a")
        return not self._byte_level and b"".join(map(self.bytes_of, ids)) == b" a"

    def ids(self) -> list[int]:
        """All ids, ascending."""
        return sorted(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def special_id(self, text: str) -> int | None:
        """The special token that is written so."""
        return self._special_ids.get(text)

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes that a token adds to a text; none for a special token or an unknown id."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def is_byte_fallback(self, token_id: int) -> bool:
        """Whether the token stands for a byte that is not written otherwise."""
        return token_id in self._byte_tokens

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of a text, nothing added.

        Returns:
            The ids, and how many characters of `text` are through after each; -1 within a character.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans: list[tuple[int, int]] = encoding.offsets
        ends = [end for _, end in spans]
        for index in range(len(spans) - 1):
            if spans[index + 1][0] < ends[index]:
                ends[index] = -1
        return encoding.ids, ends

    def _find_bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self.special:
            return b""
        if self._byte_level:
            try:
                return bytes(_BYTE_OF[char] for char in token)
            except KeyError:  # an added token: plain text
                return str(token).encode()
        if token_id in self._byte_tokens:
            return bytes([self._byte_tokens[token_id]])
        # Decoders treat the first token in a way of their own.
        once = self._tokenizer.decode([token_id], skip_special_tokens=False)
        twice = self._tokenizer.decode([token_id, token_id], skip_special_tokens=False)
        return str(twice[len(once) :]).encode()


def _lead(tokenizer: Tokenizer) -> tuple[int, ...]:
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return tuple(whole[:start])
    return ()


def _has_decoder(decoder: dict[str, Any] | None, kind: str) -> bool:
    parts = (decoder or {}).get("decoders", [decoder or {}])
    return any(part.get("type") == kind for part in parts)


def _byte_tokens(tokenizer: Tokenizer) -> dict[int, int]:
    """Token id -> byte for the tokens `<0x00>` to `<0xFF>`."""
    ids = ((tokenizer.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
    return {token_id: byte for token_id, byte in ids if token_id is not None}
