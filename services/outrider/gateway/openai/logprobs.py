"""Log-probabilities in OpenAI's and vLLM's shapes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from outrider.core.params import TokenLogprobs
from outrider.gateway.openai import responses as r

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say; as OpenAI and vLLM do."""


class Vocabulary(Protocol):
    """How single tokens are spelled."""

    def token_text(self, token_id: int) -> str:
        """A token alone, as text; broken characters as U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token stands for."""

    def is_special(self, token_id: int) -> bool:
        """Whether it is left out of text."""


class LogprobWriter:
    """Writes the log-probabilities of one request."""

    def __init__(
        self, vocabulary: Vocabulary, *, as_ids: bool = False, skip_special_tokens: bool = True
    ) -> None:
        """`as_ids`: tokens are spelled "token_id:5"."""
        self._vocabulary = vocabulary
        self._as_ids = as_ids
        self._skip_special_tokens = skip_special_tokens

    def chat(self, entries: Sequence[TokenLogprobs], top: int) -> r.ChatLogprobs:
        """`choice.logprobs` of the chat API, `top` alternatives at each position."""
        content: list[r.ChatLogprob] = [
            {
                **self._chat_token(entry.token_id, entry.logprob),
                "top_logprobs": [self._chat_token(*pair) for pair in entry.top[:top]],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def completion(
        self,
        token_ids: Sequence[int],
        entries: Sequence[TokenLogprobs | None],
        top: int,
        *,
        offsets: TextOffsets,
    ) -> r.CompletionLogprobs:
        """`choice.logprobs` of the completions API; an entry may be missing (the prompt's first token)."""
        return {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry is None else self._alternatives(entry, top) for entry in entries],
            "text_offset": [offsets.push(self._visible_bytes(token_id)) for token_id in token_ids],
        }

    def prompt(self, entries: Sequence[TokenLogprobs], top: int) -> list[r.PromptPosition | None]:
        """vLLM's `prompt_logprobs`: one for each token of the prompt, the first of which has none."""
        return [None, *(self._position(entry, top) for entry in entries)]

    def _position(self, entry: TokenLogprobs, top: int) -> r.PromptPosition:
        ranked = {
            token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top[:top], start=1)
        }
        told = {entry.token_id: (entry.logprob, entry.rank)} | ranked
        return {
            str(token_id): {
                "logprob": finite(logprob),
                "rank": rank,
                "decoded_token": self._vocabulary.token_text(token_id),
            }
            for token_id, (logprob, rank) in told.items()
        }

    def _alternatives(self, entry: TokenLogprobs, top: int) -> dict[str, float]:
        """The most probable ones, and the token itself if it is none of them."""
        pairs = [*entry.top[:top], (entry.token_id, entry.logprob)]
        told: dict[str, float] = {}
        for token_id, logprob in pairs:
            told.setdefault(self._name(token_id), finite(logprob))
        return told

    def _chat_token(self, token_id: int, logprob: float) -> r.TopLogprob:
        return {
            "token": self._spell(token_id),
            "logprob": finite(logprob),
            "bytes": list(self._vocabulary.token_bytes(token_id)),
        }

    def _spell(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._vocabulary.token_text(token_id)

    def _name(self, token_id: int) -> str:
        """A spelling that can be a key: parts of characters as OpenAI's "bytes:\\xe2", not all as U+FFFD."""
        raw = self._vocabulary.token_bytes(token_id)
        if self._as_ids or not raw:
            return f"token_id:{token_id}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _visible_bytes(self, token_id: int) -> bytes:
        if self._skip_special_tokens and self._vocabulary.is_special(token_id):
            return b""
        return self._vocabulary.token_bytes(token_id)


class TextOffsets:
    """Where in a text its tokens begin, counted in characters."""

    def __init__(self, start: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = start

    def push(self, token: bytes) -> int:
        """The next token's offset: characters that were complete before it."""
        begins = self._offset
        self._offset += len(self._decoder.decode(token))
        return begins


def finite(logprob: float) -> float:
    """A number that JSON can say."""
    return max(logprob, LEAST)
