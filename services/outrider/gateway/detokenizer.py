"""Text of a growing list of token ids, given out as soon as it can no longer change.

The pieces put together are always what `Tokenizer.decode` gives for all ids at once, and no piece
ever holds half a character. Two ways get there. Byte-level vocabularies (GPT-2, Llama 3, Qwen,
SmolLM2) map each token to bytes, so an incremental UTF-8 decoder is exact. All other decoders see
the last settled token and the new ones, and runs of byte-fallback tokens (`<0x0A>`, Llama 2) are
held to their end: the tokenizer reads such a run as a whole, and one bad byte spoils all of it.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that has become final."""

    text: str
    tokens: int  # how many tokens had been pushed when the last character of `text` was complete


class Detokenizer(Protocol):
    """Turns the tokens of one generation into text."""

    @property
    def settled(self) -> int:
        """How many of the pushed tokens can no longer contribute text, except half a character."""

    def push(self, token_id: int) -> list[TextPiece]:
        """Take the next token; return the text that became final, in order."""

    def flush(self) -> list[TextPiece]:
        """There are no more tokens: return what is left, broken characters as U+FFFD."""


class DetokenizerFactory:
    """Knows a tokenizer's kind and vocabulary; makes one `Detokenizer` for each generation."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        decoder = json.loads(tokenizer.to_str())["decoder"] or {}
        self._byte_level = decoder.get("type") == "ByteLevel"
        self._byte_tokens = _byte_tokens(tokenizer) if _has_byte_fallback(decoder) else {}
        self._bytes_of: dict[int, bytes] = {}

    def create(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A detokenizer for a new generation; special tokens are left out of the text, or stand in it."""
        skipped = self._special if skip_special_tokens else frozenset[int]()
        if self._byte_level:
            return _ByteLevelDetokenizer(self, skipped)
        return _WindowDetokenizer(self._tokenizer, skipped, self._byte_tokens)

    def is_special(self, token_id: int) -> bool:
        """Whether texts leave the token out, unless they are to have it."""
        return token_id in self._special

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes that a token stands for after other tokens, special or not; none for an unknown id.

        Those of a text's tokens put together are the text, but for what decoders other than byte-level
        ones drop at its start or put right between words.
        """
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._bytes_of[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        if self._byte_level:
            return _byte_level_bytes(self._tokenizer.id_to_token(token_id) or "")
        byte = self._byte_tokens.get(token_id)
        if byte is not None:
            return bytes([byte])
        once = self._tokenizer.decode([token_id], skip_special_tokens=False)
        twice = self._tokenizer.decode([token_id, token_id], skip_special_tokens=False)
        return twice[len(once) :].encode()


class _ByteLevelDetokenizer:
    def __init__(self, vocabulary: DetokenizerFactory, skipped: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pushed = 0

    @property
    def settled(self) -> int:
        return self._pushed

    def push(self, token_id: int) -> list[TextPiece]:
        self._pushed += 1
        if token_id in self._skipped:
            return []
        text = self._decoder.decode(self._vocabulary.bytes_of(token_id))
        return [TextPiece(text, self._pushed)] if text else []

    def flush(self) -> list[TextPiece]:
        text = self._decoder.decode(b"", final=True)
        return [TextPiece(text, self._pushed)] if text else []


class _WindowDetokenizer:
    """Decodes the last settled token with the unsettled ones, and gives what they add to it.

    One token of context is enough: decoders look at neighbours only to treat the first or the last
    token differently.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], byte_tokens: dict[int, int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._byte_tokens = byte_tokens
        self._context: list[int] = []
        self._pending: list[tuple[int, int]] = []  # token id, tokens pushed up to and with it
        self._pushed = 0

    @property
    def settled(self) -> int:
        return self._pending[0][1] - 1 if self._pending else self._pushed

    def push(self, token_id: int) -> list[TextPiece]:
        self._pushed += 1
        if token_id in self._skipped or self._tokenizer.id_to_token(token_id) is None:
            return []
        if token_id in self._byte_tokens:
            self._pending.append((token_id, self._pushed))
            return []
        pieces = self._settle_run()
        self._pending.append((token_id, self._pushed))
        text = self._added_text()
        if text.endswith(_REPLACEMENT):
            return pieces
        self._accept()
        return [*pieces, TextPiece(text, self._pushed)] if text else pieces

    def flush(self) -> list[TextPiece]:
        pieces = self._settle_run()
        if self._pending:
            text = self._added_text()
            self._accept()
            pieces.append(TextPiece(text, self._pushed))
        return pieces

    def _settle_run(self) -> list[TextPiece]:
        """Give out a finished run of byte tokens, each character with the token that completed it."""
        if not self._pending or self._pending[-1][0] not in self._byte_tokens:
            return []
        text = self._added_text()
        pieces = self._split_run()
        if "".join(piece.text for piece in pieces) != text:
            pieces = [TextPiece(text, self._pending[-1][1])]
        self._accept()
        return pieces

    def _split_run(self) -> list[TextPiece]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        pieces = []
        for token_id, tokens in self._pending:
            text = decoder.decode(bytes([self._byte_tokens.get(token_id, 0)]))
            if text:
                pieces.append(TextPiece(text, tokens))
        return pieces

    def _added_text(self) -> str:
        pending = [token_id for token_id, _ in self._pending]
        before = self._tokenizer.decode(self._context, skip_special_tokens=False)
        whole = self._tokenizer.decode([*self._context, *pending], skip_special_tokens=False)
        return whole[len(before) :]

    def _accept(self) -> None:
        self._context = [self._pending[-1][0]]
        self._pending.clear()


def _has_byte_fallback(decoder: dict[str, object]) -> bool:
    parts = decoder.get("decoders", [decoder])
    return isinstance(parts, list) and any(part.get("type") == "ByteFallback" for part in parts)


def _byte_tokens(tokenizer: Tokenizer) -> dict[int, int]:
    """Token id -> byte for the tokens `<0x00>` to `<0xFF>`."""
    ids = ((tokenizer.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
    return {token_id: byte for token_id, byte in ids if token_id is not None}


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (`bytes_to_unicode` of its encoder.py)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_level_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    """Bytes of a token; one with a character outside the alphabet (an added token) is plain text."""
    try:
        return bytes(_ALPHABET[char] for char in token)
    except KeyError:
        return token.encode()
